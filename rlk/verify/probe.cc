#include "rlk/verify/probe.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "rlk/core/error.h"
#include "rlk/core/thread_pool.h"
#include "rlk/numerics/mma/mac.h"

namespace rlk {
namespace {

using numerics::mma::Family;
using numerics::mma::ResultHeader;

constexpr int kKeptSize = 64;
constexpr std::uint64_t kKeptSeed = 1;
constexpr int kOneInstruction = 16;
constexpr int kChain = 256;

// One product D[rows, columns] = A * B^T + C.
struct Case {
  Case(Family family, std::uint64_t seed, const RawInstruction& instruction, int size, int depth)
      : family(family),
        seed(seed),
        rows(round_up(size, instruction.rows)),
        columns(round_up(size, instruction.columns)),
        k(round_up(depth, instruction.k)),
        a(static_cast<std::size_t>(rows * k)),
        b(static_cast<std::size_t>(columns * k)),
        c(static_cast<std::size_t>(rows * columns)) {
    fill_family(family, seed, rows, columns, k, a.data(), b.data(), c.data());
  }

  static std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

  Family family;
  std::uint64_t seed;
  std::int64_t rows, columns, k;
  std::vector<bf16> a, b;
  std::vector<float> c;
};

std::vector<float> device_results(const RawInstruction& instruction, const Case& in) {
  std::vector<float> d(in.c.size());
  instruction.run(d.data(), in.c.data(), in.a.data(), in.b.data(), static_cast<int>(in.rows),
                  static_cast<int>(in.columns), static_cast<int>(in.k));
  return d;
}

std::vector<float> model_results(ThreadPool& threads, Profile profile, const Case& in) {
  std::vector<float> d(in.c.size());
  numerics::with_mac(profile, [&](auto mac) {
    threads.parallel_for(in.rows, 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t i = begin * in.columns; i < end * in.columns; ++i) {
        const numerics::Strided a{in.a.data() + i / in.columns * in.k};
        const numerics::Strided b{in.b.data() + i % in.columns * in.k};
        d[i] = numerics::chain(mac, in.c[i], a, b, 0, in.k);
      }
    });
  });
  return d;
}

void compare(const Case& in, const std::vector<float>& device, const std::vector<float>& model,
             ProbeEntry& entry) {
  entry.compared += static_cast<std::int64_t>(model.size());
  for (std::int64_t i = 0; i < in.rows * in.columns; ++i) {
    const auto device_bits = std::bit_cast<std::uint32_t>(device[i]);
    const auto model_bits = std::bit_cast<std::uint32_t>(model[i]);
    if (device_bits == model_bits) continue;
    ++entry.different;
    if (entry.first) continue;
    entry.first = {in.seed,        in.rows,        in.columns,  in.k,
                   i / in.columns, i % in.columns, device_bits, model_bits};
  }
}

void append_record(std::string& file, const char* instruction, const Case& in,
                   const std::vector<float>& results) {
  static_assert(std::endian::native == std::endian::little, "the format is");
  ResultHeader header{};
  std::memcpy(header.magic, numerics::mma::kResultMagic, sizeof(header.magic));
  RLK_ASSERT(std::strlen(instruction) <= sizeof(header.instruction));
  std::memcpy(header.instruction, instruction, std::strlen(instruction));
  header.family = static_cast<std::uint32_t>(in.family);
  header.rows = static_cast<std::uint32_t>(in.rows);
  header.columns = static_cast<std::uint32_t>(in.columns);
  header.k = static_cast<std::uint32_t>(in.k);
  header.seed = in.seed;
  file.append(reinterpret_cast<const char*>(&header), sizeof(header));
  file.append(reinterpret_cast<const char*>(results.data()), results.size() * sizeof(float));
}

// All rows of a and all columns of b are the point's, all of c is its c; the device's first result.
std::uint32_t device_answer(const RawInstruction& instruction,
                            const numerics::mma::OpenPoint& point) {
  const auto rows = static_cast<std::size_t>(instruction.rows);
  const auto columns = static_cast<std::size_t>(instruction.columns);
  const auto k = static_cast<std::size_t>(instruction.k);
  std::vector<bf16> a(rows * k), b(columns * k), x(k), y(k);
  numerics::mma::fill_operands(point, instruction.k, x.data(), y.data());
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = x[i % k];
  for (std::size_t i = 0; i < b.size(); ++i) b[i] = y[i % k];
  const std::vector<float> c(rows * columns, point.c);
  std::vector<float> d(c.size());
  instruction.run(d.data(), c.data(), a.data(), b.data(), instruction.rows, instruction.columns,
                  instruction.k);
  return std::bit_cast<std::uint32_t>(d[0]);
}

std::string file_name(std::string instruction) {
  std::replace(instruction.begin(), instruction.end(), ' ', '_');
  return instruction + ".bin";
}

}  // namespace

std::int64_t ProbeReport::compared() const {
  std::int64_t n = 0;
  for (const ProbeEntry& entry : entries) n += entry.compared;
  return n + std::ssize(answers);
}

std::int64_t ProbeReport::different() const {
  std::int64_t n = 0;
  for (const ProbeEntry& entry : entries) n += entry.different;
  for (const ProbeAnswer& answer : answers) n += answer.as_model() ? 0 : 1;
  return n;
}

ProbeReport probe(const ProbeOptions& options) {
  ProbeReport report;
  ThreadPool threads(options.threads);
  for (const RawInstruction& instruction : options.instructions) {
    ProbeFile file{file_name(instruction.name), {}};
    for (const Family family : numerics::mma::kFamilies) {
      if (options.progress) options.progress(instruction, family);
      ProbeEntry entry{.instruction = instruction, .family = family, .first = {}};
      const auto try_case = [&](std::uint64_t seed, int size, int depth, bool keep) {
        const Case in(family, seed, instruction, size, depth);
        const std::vector<float> results = device_results(instruction, in);
        compare(in, results, model_results(threads, instruction.profile, in), entry);
        if (keep) append_record(file.bytes, instruction.name, in, results);
      };
      for (const int depth : {kOneInstruction, kChain}) {
        try_case(kKeptSeed, kKeptSize, depth, true);
      }
      try_case(options.seed, options.rows, kOneInstruction, false);
      try_case(options.seed, options.rows / 4, kChain, false);
      report.entries.push_back(entry);
    }
    report.files.push_back(std::move(file));
    for (const numerics::mma::OpenPoint& point : numerics::mma::open_points()) {
      if (point.profile != instruction.profile) continue;
      report.answers.push_back({instruction, &point, device_answer(instruction, point)});
    }
  }
  return report;
}

}  // namespace rlk
