// A call whose pieces several threads compute, in any order.
#pragma once

typedef void Piece(void *of, int number);

// Calls piece(of, 0) to piece(of, pieces - 1) once each, on at most `threads` threads.
void share(int threads, int pieces, Piece *piece, void *of);

template <typename Of>
void share(int threads, int pieces, void (*piece)(Of &, int), Of &of) {
    struct Both {
        void (*piece)(Of &, int);
        Of &of;
    } both{piece, of};
    auto call = [](void *of, int number) {
        Both &both = *(Both *)of;
        both.piece(both.of, number);
    };
    share(threads, pieces, (Piece *)call, &both);
}
