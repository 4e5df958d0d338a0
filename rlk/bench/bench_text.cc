// A report as JSON, as a table for a terminal, and as Markdown.
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "rlk/bench/bench.h"
#include "rlk/bench/case.h"
#include "rlk/core/environment.h"

namespace rlk {
namespace {

using nlohmann::json;

json number_or_null(double x) { return x > 0 ? json(x) : json(); }

json to_json(const BenchCase& c, const std::string& profile) {
  json out = {{"name", c.name},
              {"operator", c.op},
              {"shape", c.shape},
              {"profile", profile},
              {"threads", c.threads > 0 ? json(c.threads) : json()},
              {"bits_equal", c.ran ? json(c.bits_equal) : json()},
              {"ms", number_or_null(c.ms)},
              {"rate", number_or_null(c.rate)},
              {"unit", c.unit},
              {"peer", c.peer.empty() ? json() : json(c.peer)},
              {"peer_ms", number_or_null(c.peer_ms)},
              {"ratio", number_or_null(c.ratio)},
              {"target", number_or_null(c.target)},
              {"met", c.target > 0 && c.ratio > 0 ? json(c.met()) : json()},
              {"price", number_or_null(c.price)},
              {"peers", json::array()}};
  for (const BenchPeer& p : c.peers) {
    out["peers"].push_back(
        {{"name", p.name}, {"ms", p.ms}, {"rate", p.rate}, {"judged", p.judged}});
  }
  if (!c.note.empty()) out["note"] = c.note;
  if (c.peak_bytes >= 0) out["peak_bytes"] = c.peak_bytes;
  if (!c.group.empty()) out["group"] = c.group;
  return out;
}

json to_json(const device::Info& gpu) {
  return {{"name", gpu.name},
          {"architecture", gpu.architecture},
          {"memory_bytes", gpu.memory_bytes},
          {"driver", gpu.driver},
          {"runtime", gpu.runtime}};
}

struct Counts {
  std::int64_t ran = 0, equal = 0, not_available = 0, judged = 0, met = 0;
};

Counts count(const BenchReport& report) {
  Counts n;
  for (const BenchCase& c : report.cases) {
    n.ran += c.ran;
    n.equal += c.bits_equal;
    n.not_available += !c.ran;
    if (c.target <= 0 || c.ratio <= 0) continue;
    ++n.judged;
    n.met += c.met();
  }
  for (const BenchGroup& g : report.groups) {
    if (g.target <= 0) continue;
    ++n.judged;
    n.met += g.met();
  }
  return n;
}

std::string library_text(const BenchLibrary& l) {
  if (l.version.empty()) {
    return l.name + " not installed" + (l.reason.empty() ? "" : fmt::format(" ({})", l.reason));
  }
  return l.core.empty() ? fmt::format("{} {}", l.name, l.version)
                        : fmt::format("{} {} ({})", l.name, l.version, l.core);
}

std::string libraries_text(const BenchReport& report) {
  std::string text;
  for (std::size_t i = 0; i < report.libraries.size(); ++i) {
    text += (i ? ", " : "") + library_text(report.libraries[i]);
  }
  return text;
}

// "NVIDIA H200 (sm_90, driver 13.0)", or "2 CPUs, Intel(R) Xeon(R) Processor".
std::string machine_text(const BenchReport& report) {
  if (report.gpu) {
    return fmt::format("{} ({}, driver {})", report.gpu->name, report.gpu->architecture,
                       report.gpu->driver);
  }
  const json cpu = json::parse(environment_json(0)).at("cpu");
  const json& model = cpu.at("model");
  return fmt::format("{} CPUs, {}", cpu.at("logical_cpus").dump(),
                     model.is_string() ? model.get<std::string>() : "model unknown");
}

std::string ratio_text(double ratio) { return ratio > 0 ? fmt::format("{:.2f}", ratio) : "-"; }

std::string verdict(double ratio, double target) {
  if (target <= 0 || ratio <= 0) return "";
  return ratio >= target ? "met" : "missed";
}

std::string bits_text(const BenchCase& c) {
  return !c.ran ? "n/a" : c.bits_equal ? "equal" : "DIFFER";
}

std::string size_text(const BenchCase& c) {
  if (c.peak_bytes >= 0) return fmt::format("{:.1f} MB", 1e-6 * static_cast<double>(c.peak_bytes));
  if (c.ms <= 0) return "-";
  return c.ms < 1 ? fmt::format("{:.4f} ms", c.ms) : fmt::format("{:.2f} ms", c.ms);
}

std::string rate_text(const BenchCase& c) {
  if (c.rate <= 0) return "-";
  return fmt::format("{:.{}f} {}", c.rate, c.rate < 1e4 ? 1 : 0, c.unit);
}

std::string peer_text(const BenchCase& c) { return c.peer.empty() ? "-" : c.peer; }

std::string summary_text(const BenchReport& report) {
  const Counts n = count(report);
  std::string text = fmt::format("bits: {} of {} cases equal; targets: {} of {} met", n.equal,
                                 n.ran, n.met, n.judged);
  if (n.not_available > 0) text += fmt::format("; {} cases not available", n.not_available);
  return text;
}

}  // namespace

// One line per case, so that two files can be compared.
std::string to_json(const BenchReport& report) {
  const Counts n = count(report);
  json machine = json::parse(environment_json(0));
  machine["device"] = device_name();
  machine["gpu"] = report.gpu ? to_json(*report.gpu) : json();
  const std::string profile = to_string(report.contract.profile);
  const json contract = {{"profile", profile},
                         {"forward_digest", forward_digest(report.contract)},
                         {"backward_digest", backward_digest(report.contract)}};
  json peers = json::array(), cases = json::array(), groups = json::array();
  for (const BenchLibrary& l : report.libraries) {
    peers.push_back({{"name", l.name},
                     {"installed", !l.version.empty()},
                     {"version", l.version.empty() ? json() : json(l.version)},
                     {"core", l.core.empty() ? json() : json(l.core)},
                     {"reason", l.reason.empty() ? json() : json(l.reason)}});
  }
  for (const BenchCase& c : report.cases) cases.push_back(to_json(c, profile));
  for (const BenchGroup& g : report.groups) {
    groups.push_back({{"name", g.name},
                      {"ratio", g.ratio},
                      {"target", g.target},
                      {"met", g.target > 0 ? json(g.met()) : json()},
                      {"cases", g.cases}});
  }
  const json summary = {{"bits_equal", report.bits_equal()},
                        {"ran", n.ran},
                        {"equal", n.equal},
                        {"not_available", n.not_available},
                        {"judged", n.judged},
                        {"met", n.met},
                        {"groups", groups}};
  std::string lines;
  for (const json& c : cases) lines += (lines.empty() ? "\n  " : ",\n  ") + c.dump();
  return fmt::format(
      "{{\n\"date\": \"{}\",\n\"kernels\": \"{}\",\n\"quick\": {},\n\"machine\": {},\n"
      "\"contract\": {},\n\"peers\": {},\n\"cases\": [{}\n],\n\"summary\": {}\n}}\n",
      report.date, report.kernels, report.quick, machine.dump(), contract.dump(), peers.dump(),
      lines, summary.dump());
}

std::string to_text(const BenchReport& report) {
  constexpr const char* kLine = "{:<65}{:<7}{:>11}{:>18}  {:<17}{:>6}{:>7} {:<7}{:>6}\n";
  std::string text =
      fmt::format("{}, {}, kernels {}, profile {}\npeers: {}\n", report.date, machine_text(report),
                  report.kernels, to_string(report.contract.profile), libraries_text(report));
  text +=
      fmt::format(kLine, "case", "bits", "time", "rate", "peer", "ratio", "target", "", "price");
  for (const BenchCase& c : report.cases) {
    text += fmt::format(kLine, c.name, bits_text(c), size_text(c), rate_text(c), peer_text(c),
                        ratio_text(c.ratio), ratio_text(c.target), verdict(c.ratio, c.target),
                        ratio_text(c.price));
    if (!c.note.empty()) text += fmt::format("    {}\n", c.note);
  }
  for (const BenchGroup& g : report.groups) {
    text += fmt::format(kLine, fmt::format("geometric mean: {} ({} cases)", g.name, g.cases), "",
                        "", "", "", ratio_text(g.ratio), ratio_text(g.target),
                        verdict(g.ratio, g.target), "");
  }
  return text + summary_text(report) + "\n";
}

std::string to_markdown(const BenchReport& report) {
  std::string text = fmt::format("Measured {} on {}, kernels {}, profile {}. Peers: {}.\n\n",
                                 report.date, machine_text(report), report.kernels,
                                 to_string(report.contract.profile), libraries_text(report));
  text +=
      "| case | bits | time | rate | peer | ratio | target | | price |\n"
      "|---|---|---|---|---|---|---|---|---|\n";
  const auto add = [&](const std::string& name, const std::string& bits, const std::string& size,
                       const std::string& rate, const std::string& peer, double ratio,
                       double target, double price) {
    text += fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", name, bits, size, rate,
                        peer, ratio_text(ratio), ratio_text(target), verdict(ratio, target),
                        ratio_text(price));
  };
  for (const BenchCase& c : report.cases) {
    add(fmt::format("`{}`", c.name), bits_text(c), size_text(c), rate_text(c), peer_text(c),
        c.ratio, c.target, c.price);
  }
  for (const BenchGroup& g : report.groups) {
    add(fmt::format("geometric mean: {}", g.name), "", "", "", "", g.ratio, g.target, 0);
  }
  return text + "\n" + summary_text(report) + ".\n";
}

}  // namespace rlk
