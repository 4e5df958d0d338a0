#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cmath>

#include <fmt/format.h>

#include "cli/verbs.h"

namespace rlk::cli {
namespace {

std::atomic<bool> g_interrupted{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

void on_signal(int signal) {
  g_interrupted = true;
  std::signal(signal, SIG_DFL);
}

}  // namespace

void catch_interrupts() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
}

bool interrupted() { return g_interrupted; }

bool stderr_is_terminal() { return isatty(STDERR_FILENO) != 0; }

std::string with_commas(std::int64_t n) {
  std::string text = std::to_string(n);
  const std::size_t first = text[0] == '-' ? 1 : 0;
  for (std::size_t i = text.size(); i > first + 3;) text.insert(i -= 3, 1, ',');
  return text;
}

std::string clock_text(double seconds) {
  const auto s = static_cast<std::int64_t>(std::llround(seconds));
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

}  // namespace rlk::cli
