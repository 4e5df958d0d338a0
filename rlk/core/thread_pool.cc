#include "rlk/core/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
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

  // The loop that is running. Written by the caller before `generation` rises.
  std::atomic<std::uint64_t> generation{0};
  std::atomic<int> sleeping{0};
  std::atomic<std::int64_t> next{0};
  std::atomic<int> active{0};  // workers that have not yet left this loop
  std::int64_t n = 0;
  std::int64_t step = 1;
  Call call = nullptr;
  const void* body = nullptr;

  void work(int thread) {
    for (;;) {
      const std::int64_t begin = next.fetch_add(step, std::memory_order_relaxed);
      if (begin >= n) return;
      call(body, begin, std::min(begin + step, n), thread);
    }
  }

  void worker_main(int thread) {
    std::uint64_t seen = 0;
    for (;;) {
      int spins = 0;
      while (generation.load(std::memory_order_acquire) == seen && spins < kSpins) {
        relax();
        ++spins;
      }
      if (generation.load(std::memory_order_acquire) == seen) {
        std::unique_lock lock(mutex);
        sleeping.fetch_add(1);
        wake.wait(lock, [&] { return stop || generation.load() != seen; });
        sleeping.fetch_sub(1);
      }
      if (generation.load(std::memory_order_acquire) == seen) return;  // stop
      seen = generation.load(std::memory_order_acquire);
      work(thread);
      active.fetch_sub(1, std::memory_order_release);
    }
  }
};

ThreadPool::ThreadPool(int num_threads) : state_(std::make_unique<State>()) {
  if (num_threads < 0) {
    fail(ErrorCode::kInvalidArgument, "threads: {} is negative", num_threads);
  }
  if (num_threads == 0) num_threads = std::max(1u, std::thread::hardware_concurrency());
  for (int i = 1; i < num_threads; ++i) {
    state_->workers.emplace_back([this, i] { state_->worker_main(i); });
  }
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  for (std::thread& t : state_->workers) t.join();
}

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
  s.call = call;
  s.body = body;
  s.next.store(0, std::memory_order_relaxed);
  s.active.store(static_cast<int>(s.workers.size()), std::memory_order_relaxed);
  s.generation.fetch_add(1, std::memory_order_seq_cst);
  if (s.sleeping.load(std::memory_order_seq_cst) > 0) {
    std::lock_guard lock(s.mutex);
    s.wake.notify_all();
  }
  s.work(0);
  for (int spins = 0; s.active.load(std::memory_order_acquire) > 0; ++spins) {
    // A worker that lost its core to another process cannot finish while we hold this one.
    if (spins < kSpins) relax(); else std::this_thread::yield();
  }
}

}  // namespace rlk
