// A fixed set of threads that share loops. How a loop is cut is a plan: it never reaches a bit.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace rlk {

class ThreadPool {
 public:
  // num_threads counts the caller; 0 means one per hardware thread.
  explicit ThreadPool(int num_threads = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const;

  // Calls body(begin, end, thread) on pieces of [0, n), each a multiple of `grain` long (but the
  // last), handed out in rising order to whichever thread is free; returns when all are done.
  // thread is in [0, num_threads()) and indexes per-thread scratch. The body must not throw and
  // must not call parallel_for. n <= grain runs on the caller alone.
  template <typename Body>
  void parallel_for(std::int64_t n, std::int64_t grain, const Body& body) {
    run(n, grain, [](const void* b, std::int64_t begin, std::int64_t end, int thread) {
      (*static_cast<const Body*>(b))(begin, end, thread);
    }, &body);
  }

 private:
  using Call = void (*)(const void* body, std::int64_t begin, std::int64_t end, int thread);
  void run(std::int64_t n, std::int64_t grain, Call call, const void* body);

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace rlk
