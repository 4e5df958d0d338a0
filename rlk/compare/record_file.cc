#include "rlk/compare/record_file.h"

#include <bit>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <sstream>

#include <nlohmann/json.hpp>

#include "rlk/core/error.h"
#include "rlk/io/files.h"
#include "rlk/io/json.h"

namespace rlk {

namespace {

constexpr std::int64_t kVersion = 1;

void read_header(FieldReader header, Record& record) {
  const auto format = header.required<std::string>("format");
  if (format != "rlk-record") {
    header.refuse(ErrorCode::kFormat, "format",
                  fmt::format("expected \"rlk-record\", found \"{}\"", format));
  }
  const auto version = header.required<std::int64_t>("version");
  if (version != kVersion) {
    header.refuse(ErrorCode::kFormat, "version",
                  fmt::format("expected {}, found {}", kVersion, version));
  }
  record.name = header.required<std::string>("engine");
  header.optional("provenance", record.provenance);
  record.model_digest = header.required<std::string>("model_digest");
  record.forward_digest = header.required<std::string>("forward_digest");
  record.vocab_size = header.required<std::int64_t>("vocab_size", {.min = 1, .max = 1 << 30});
  header.finish();
}

float parse_bits(const FieldReader& line, const std::string& text) {
  std::uint32_t bits = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), bits, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 8) {
    line.refuse(ErrorCode::kFormat, "logprobs",
                fmt::format("expected eight hex digits, found \"{}\"", text));
  }
  return std::bit_cast<float>(bits);
}

std::vector<std::int32_t> read_tokens(FieldReader& line, const char* key, std::int64_t vocab_size) {
  const auto ids =
      line.required<std::vector<std::int64_t>>(key, {{.min = 0, .max = vocab_size - 1}});
  return {ids.begin(), ids.end()};
}

void read_sampling(FieldReader sampling, RecordSampling& result) {
  sampling.optional("temperature", result.temperature, {.min = 0});
  sampling.optional("top_k", result.top_k, {.min = 0});
  sampling.optional("top_p", result.top_p, {.min = 0, .max = 1});
  sampling.optional("min_p", result.min_p, {.min = 0, .max = 1});
  sampling.finish();
}

RecordSample read_sample(FieldReader line, const Record& record) {
  RecordSample s;
  line.optional("step", s.step, {.min = 0});
  s.sample = line.required<std::int64_t>("sample", {.min = 0});
  read_sampling(line.object("sampling"), s.sampling);
  s.prefix = read_tokens(line, "prefix", record.vocab_size);
  s.targets = read_tokens(line, "targets", record.vocab_size);
  const std::size_t n = s.targets.size();

  s.positions.resize(n);
  std::iota(s.positions.begin(), s.positions.end(), static_cast<std::int64_t>(s.prefix.size()));
  line.optional("positions", s.positions, {{.min = 0}});

  std::vector<std::int64_t> mask(n, 1);
  line.optional("mask", mask, {{.min = 0, .max = 1}});
  s.mask.assign(mask.begin(), mask.end());

  std::int64_t version = 0;
  if (line.optional("weight_version", version)) {
    s.weight_versions.assign(n, version);
    if (line.has("weight_versions")) {
      line.refuse(ErrorCode::kFormat, "weight_version", "stands beside weight_versions");
    }
  } else {
    s.weight_versions = line.required<std::vector<std::int64_t>>("weight_versions");
  }
  for (const std::string& text : line.required<std::vector<std::string>>("logprobs")) {
    s.logprobs.push_back(parse_bits(line, text));
  }
  line.finish();

  const auto check = [&](const char* field, std::size_t size) {
    if (size == n) return;
    line.refuse(ErrorCode::kFormat, field, fmt::format("has {} elements, targets has {}", size, n));
  };
  check("positions", s.positions.size());
  check("mask", s.mask.size());
  check("weight_versions", s.weight_versions.size());
  check("logprobs", s.logprobs.size());
  return s;
}

}  // namespace

Record read_record(std::istream& in, const std::string& source) {
  Record record;
  bool has_header = false;
  std::int64_t line_number = 0;
  for (std::string text; std::getline(in, text);) {
    ++line_number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto line = JsonDocument::parse(text, fmt::format("{}:{}", source, line_number));
    if (!has_header) {
      read_header(line.object(), record);
      has_header = true;
    } else {
      record.samples.push_back(read_sample(line.object(), record));
    }
  }
  if (in.bad()) fail(ErrorCode::kIo, "{}: cannot read", source);
  if (!has_header)
    fail(ErrorCode::kFormat, "{}: empty; expected the header of an rlk-record", source);
  return record;
}

Record read_record(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in || std::filesystem::is_directory(path)) {
    fail(ErrorCode::kIo, "{}: cannot open the record file", path);
  }
  Record record = read_record(in, path);
  // Enough to notice a file that is compared with itself.
  if (record.provenance.empty()) {
    record.provenance = "file:" + std::filesystem::weakly_canonical(path).string();
  }
  return record;
}

void write_record(std::ostream& out, const Record& record) {
  nlohmann::ordered_json header;
  header["format"] = "rlk-record";
  header["version"] = kVersion;
  header["engine"] = record.name;
  header["provenance"] = record.provenance;
  header["model_digest"] = record.model_digest;
  header["forward_digest"] = record.forward_digest;
  header["vocab_size"] = record.vocab_size;
  out << header.dump() << '\n';
  for (const RecordSample& s : record.samples) {
    nlohmann::ordered_json line;
    line["step"] = s.step;
    line["sample"] = s.sample;
    line["sampling"] = {{"temperature", s.sampling.temperature},
                        {"top_k", s.sampling.top_k},
                        {"top_p", s.sampling.top_p},
                        {"min_p", s.sampling.min_p}};
    line["prefix"] = s.prefix;
    line["targets"] = s.targets;
    line["positions"] = s.positions;
    line["mask"] = s.mask;
    line["weight_versions"] = s.weight_versions;
    auto logprobs = nlohmann::ordered_json::array();
    for (const float x : s.logprobs) {
      logprobs.push_back(fmt::format("{:08x}", std::bit_cast<std::uint32_t>(x)));
    }
    line["logprobs"] = logprobs;
    out << line.dump() << '\n';
  }
}

void write_record(const std::string& path, const Record& record) {
  std::ostringstream text;
  write_record(text, record);
  write_file(path, text.str());
}

}  // namespace rlk
