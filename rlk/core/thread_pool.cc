#include "rlk/core/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "rlk/core/error.h"

namespace rlk {
namespace {

// Loops follow each other within microseconds in a decode step, so a worker looks for the next one
// this many times before it sleeps. About 20 us; a sleeping worker costs a wake-up of 5 to 50 us.
constexpr int kSpins = 4000;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

struct ThreadPool::State {
  std::vector<std::thread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  bool stop = false;
  std::atomic<int> sleeping{0};

  // The loop that is running. A piece is claimed by taking one off `unclaimed`; whoever got a
  // positive number has one, and the loop cannot end (nor these fields change) before it is done.
  // So the caller waits for pieces, never for a worker that is asleep.
  std::atomic<std::int64_t> unclaimed{0};
  std::atomic<std::int64_t> done{0};
  std::int64_t pieces = 0;
  std::int64_t n = 0;
  std::int64_t step = 1;
  Call call = nullptr;
  const void* body = nullptr;

  void join() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (std::thread& t : workers) t.join();
  }

  void work(int thread) {
    while (unclaimed.load(std::memory_order_relaxed) > 0) {
      const std::int64_t ticket = unclaimed.fetch_sub(1, std::memory_order_acquire);
      if (ticket <= 0) return;
      const std::int64_t begin = (pieces - ticket) * step;
      call(body, begin, std::min(begin + step, n), thread);
      done.fetch_add(1, std::memory_order_release);
    }
  }

  void worker_main(int thread) {
    for (;;) {
      for (int spins = 0; spins < kSpins; ++spins) {
        if (unclaimed.load(std::memory_order_relaxed) > 0) break;
        relax();
      }
      if (unclaimed.load(std::memory_order_relaxed) <= 0) {
        std::unique_lock lock(mutex);
        sleeping.fetch_add(1);
        wake.wait(lock, [&] { return stop || unclaimed.load() > 0; });
        sleeping.fetch_sub(1);
        if (stop) return;
      }
      work(thread);
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  if (num_threads < 0) {
    fail(ErrorCode::kInvalidArgument, "threads: {} is negative", num_threads);
  }
  if (num_threads == 0) num_threads = std::max(1u, std::thread::hardware_concurrency());
  try {
    for (int i = 1; i < num_threads; ++i) {
      state_->workers.emplace_back([this, i] { state_->worker_main(i); });
    }
  } catch (const std::system_error& e) {
    state_->join();
    fail(ErrorCode::kNotAvailable, "threads: the system refused one of {}: {}", num_threads,
         e.what());
  }
}

ThreadPool::~ThreadPool() { state_->join(); }

int ThreadPool::num_threads() const { return static_cast<int>(state_->workers.size()) + 1; }

void ThreadPool::run(std::int64_t n, std::int64_t grain, Call call, const void* body) {
  if (n <= 0) return;
  grain = std::max<std::int64_t>(grain, 1);
  State& s = *state_;
  if (s.workers.empty() || n <= grain) {
    call(body, 0, n, 0);
    return;
  }
  // About four pieces per thread, so that an uneven piece does not leave the others idle.
  const std::int64_t pieces = 4 * num_threads();
  s.n = n;
  s.step = std::max(grain, (n + pieces * grain - 1) / (pieces * grain) * grain);
  s.pieces = (n + s.step - 1) / s.step;
  s.call = call;
  s.body = body;
  s.done.store(0, std::memory_order_relaxed);
  s.unclaimed.store(s.pieces, std::memory_order_seq_cst);
  if (s.sleeping.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(s.mutex);
    s.wake.notify_all();
  }
  s.work(0);
  for (int spins = 0; s.done.load(std::memory_order_acquire) < s.pieces; ++spins) {
    // A worker that lost its core to another process cannot finish while we hold this one.
    if (spins < kSpins) {
      relax();
    } else {
      std::this_thread::yield();
    }
  }
}

}  // namespace rlk
