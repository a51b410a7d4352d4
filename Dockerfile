# docker build -t manyhands . && docker run --rm -v "$PWD/runs:/work/runs" manyhands train lunarlander
FROM python:3.12-slim

RUN useradd --create-home --home-dir /work trainer
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
# torch from its CPU index: the default build includes gigabytes of GPU packages.
RUN pip install --no-cache-dir -c constraints.txt torch --index-url https://download.pytorch.org/whl/cpu \
 && pip install --no-cache-dir -c constraints.txt ".[atari,box2d,video,plots,fast]"

# Processes share nameless memory (memfd), not /dev/shm, so --shm-size is not needed.
USER trainer
WORKDIR /work
ENTRYPOINT ["manyhands"]
CMD ["--help"]
