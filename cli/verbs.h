// One function per verb: adds it to the program and sets what runs when it is chosen.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace rlk::cli {

// Exit codes.
inline constexpr int kOk = 0;            // done, or equal
inline constexpr int kDiffers = 1;       // bytes differ
inline constexpr int kBadInput = 2;      // arguments, files, or nothing to compare
inline constexpr int kNotAvailable = 3;  // this machine or build lacks what was asked for
inline constexpr int kInterrupted = 130;

// A verb stores its exit code in `exit_code`.
void add_rl(CLI::App& app, int& exit_code);
void add_sft(CLI::App& app, int& exit_code);
void add_init(CLI::App& app, int& exit_code);
void add_generate(CLI::App& app, int& exit_code);
void add_score(CLI::App& app, int& exit_code);
void add_compare(CLI::App& app, int& exit_code);
void add_report(CLI::App& app, int& exit_code);
void add_contract(CLI::App& app, int& exit_code);
void add_conform(CLI::App& app, int& exit_code);
void add_probe(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_env(CLI::App& app, int& exit_code);

// From here on Ctrl-C and SIGTERM ask the running job to stop; a second one ends the program.
void catch_interrupts();
bool interrupted();

// Whether standard error is a terminal that redraws a line.
bool stderr_is_terminal();

// 1234567 -> "1,234,567"
std::string with_commas(std::int64_t n);
// 83 -> "1:23"
std::string clock_text(double seconds);

}  // namespace rlk::cli
