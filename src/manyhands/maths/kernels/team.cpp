// Threads that help the calling one. Each takes the next piece that nobody has taken, so a helper
// that gets no time takes none. A helper looks for work for SPIN_US, then it sleeps.

#include "team.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <pthread.h>
#include <signal.h>
#include <thread>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

constexpr int SPIN_US = 50, LOOKS = 64;
constexpr uint64_t LOW = 0xffffffff;

// `taken` counts calls in its upper half and pieces taken in its lower half: a helper that is late
// cannot take a piece of a call that it does not know.
struct Team {
    std::atomic<uint64_t> taken{0};
    std::atomic<int> pieces{0}, done{0}, asleep{0};
    std::atomic<Piece *> piece{nullptr};
    std::atomic<void *> of{nullptr};
    std::atomic<unsigned> rounding{0};
    std::atomic<bool> busy{false};
    int helpers = 0;
    std::mutex mutex;
    std::condition_variable wake;
};

static Team *team = new Team;  // never deleted: its helpers may sleep in it when the process ends

static inline void rest() {
#if defined(__SSE__)
    _mm_pause();
#else
    std::this_thread::yield();
#endif
}

static bool take(Team &of) {
    uint64_t taken = of.taken.load();
    Piece *const piece = of.piece;
    void *const about = of.of;
    const uint64_t number = taken & LOW;
    if (number >= (uint64_t)of.pieces) return false;
#if defined(__SSE__)
    const unsigned rounding = of.rounding;
#endif
    if (!of.taken.compare_exchange_strong(taken, taken + 1)) return true;  // look again
#if defined(__SSE__)
    _mm_setcsr(rounding);
#endif
    piece(about, (int)number);
    of.done++;
    return true;
}

static bool has_work(Team &of) { return (of.taken & LOW) < (uint64_t)of.pieces; }

static void help(Team *of) {
    using Clock = std::chrono::steady_clock;
    for (;;) {
        auto ends = Clock::now() + std::chrono::microseconds(SPIN_US);
        while (Clock::now() < ends)
            for (int look = 0; look < LOOKS; look++) {
                if (take(*of)) {
                    while (take(*of)) {}
                    ends = Clock::now() + std::chrono::microseconds(SPIN_US);
                }
                rest();
            }
        std::unique_lock<std::mutex> lock(of->mutex);
        of->asleep++;
        of->wake.wait(lock, [of] { return has_work(*of); });
        of->asleep--;
    }
}

// A forked process has no helpers, and the old team's lock may be held.
static void forget() { team = new Team; }

// A helper handles no signals: Python's main thread waits for them.
static void hire(Team &of, int helpers) {
    static const int registered = pthread_atfork(nullptr, nullptr, forget);
    (void)registered;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; of.helpers < helpers; of.helpers++) std::thread(help, &of).detach();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void share(int threads, int pieces, Piece *piece, void *of) {
    Team &ours = *team;
    if (threads < 2 || pieces < 2 || ours.busy.exchange(true)) {
        for (int number = 0; number < pieces; number++) piece(of, number);
        return;
    }
    if (ours.helpers < threads - 1) hire(ours, threads - 1);
    const uint64_t call = (ours.taken >> 32) + 2;
    ours.taken = (call << 32) - 1;  // nothing can be taken while the call is described
    ours.done = 0;
    ours.piece = piece;
    ours.of = of;
#if defined(__SSE__)
    ours.rounding = _mm_getcsr();
#endif
    ours.pieces = pieces;
    ours.taken = call << 32;
    if (ours.asleep) {
        std::lock_guard<std::mutex> lock(ours.mutex);
        ours.wake.notify_all();
    }
    while (take(ours)) {}
    for (int looks = 0; ours.done < pieces; looks++)
        looks < 20000 ? rest() : std::this_thread::yield();
    ours.busy = false;
}
