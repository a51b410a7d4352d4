// Reading the lanes of a replay memory: `memory/storage/reading.py` says the same in NumPy.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

struct Lanes {
    const char *frame;
    const int32_t *action;
    const float *reward, *discount;
    const uint8_t *first;
    const int64_t *written;
    int64_t lanes, rows, frame_bytes, margin, clear;
};

constexpr int32_t CLOSING = -1;

static inline int64_t onward(const Lanes &of, int64_t id) {
    return (id + 1) % of.rows ? id + 1 : id + 1 - of.rows;
}

// Rounded, then added: the empty instruction keeps compilers from fusing them, as NumPy does not.
static inline float times(float a, float b) {
    float product = a * b;
    __asm__("" : "+x"(product));
    return product;
}

// How many rows may be drawn from; with places among them, their ids instead of the places.
extern "C" int64_t candidates(const Lanes *given, int64_t *places, long count) {
    const Lanes &of = *given;
    static thread_local std::vector<int64_t> ends, oldest;
    ends.resize(of.lanes);
    oldest.resize(of.lanes);
    int64_t total = 0;
    for (int64_t lane = 0; lane < of.lanes; lane++) {
        const int64_t written = of.written[lane];
        oldest[lane] = written > of.rows - of.margin ? written - of.rows + of.clear : 0;
        total += std::max<int64_t>(written - 1 - oldest[lane], 0);
        ends[lane] = total;
    }
    for (long i = 0; i < count; i++) {
        const int64_t lane = std::upper_bound(ends.begin(), ends.end(), places[i]) - ends.begin();
        const int64_t begin = lane ? ends[lane - 1] : 0;
        places[i] = lane * of.rows + (places[i] - begin + oldest[lane]) % of.rows;
    }
    return total;
}

// The n-step sums from these rows.
extern "C" void n_step(const Lanes *given, const int64_t *ids, long count, int n, float gamma, int all_known,
                       float *rewards, float *discounts, int64_t *ends, uint8_t *known) {
    const Lanes &of = *given;
    for (long i = 0; i < count; i++) {
        const int64_t id = ids[i], lane = id / of.rows;
        const int64_t newest = lane * of.rows + (of.written[lane] + of.rows - 1) % of.rows;
        int64_t at = onward(of, id);
        bool is_known = all_known || (of.action[id] != CLOSING && !of.first[at] && id != newest);
        float reward = of.reward[id], discount = times(of.discount[id], gamma);
        for (int step = 1; step < n; step++) {
            bool continues = discount > 0 && of.action[at] != CLOSING;
            if (!all_known && at == newest) {  // its successor is not written yet
                is_known = is_known && !continues;
                continues = false;
            }
            const int64_t next = onward(of, at);
            if (!continues || of.first[next]) break;
            reward += times(discount, of.reward[at]);
            discount = times(discount, times(of.discount[at], gamma));
            at = next;
        }
        rewards[i] = reward;
        discounts[i] = discount;
        ends[i] = at;
        known[i] = is_known;
    }
}

extern "C" void gather(const Lanes *of, const int64_t *ids, long count, char *frames) {
    const int64_t size = of->frame_bytes;
    for (long i = 0; i < count; i++) std::memcpy(frames + i * size, of->frame + ids[i] * size, size);
}
