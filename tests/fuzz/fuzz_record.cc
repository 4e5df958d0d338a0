// Record files: what loads has vectors of one size, survives being written and read again to the
// bit, and can be compared.
#include <sstream>

#include "rlk/compare/record_file.h"
#include "tests/fuzz/fuzz.h"

using rlk::fuzz::promise;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return rlk::fuzz::loads_or_refuses([&] {
    std::istringstream in{std::string(rlk::fuzz::text(data, size))};
    rlk::Record record = rlk::read_record(in, rlk::fuzz::kSource);
    for (const rlk::RecordSample& s : record.samples) {
      const std::size_t n = s.targets.size();
      promise(s.positions.size() == n && s.mask.size() == n && s.weight_versions.size() == n &&
                  s.logprobs.size() == n,
              "the vectors of a sample have one size");
      for (std::int32_t id : s.targets) promise(id >= 0 && id < record.vocab_size, "ids");
    }
    std::ostringstream written;
    rlk::write_record(written, record);
    std::istringstream again{written.str()};
    rlk::Record copy = rlk::read_record(again, rlk::fuzz::kSource);
    std::ostringstream rewritten;
    rlk::write_record(rewritten, copy);
    promise(written.str() == rewritten.str(), "a record survives writing and reading");
    record.provenance = "one";
    copy.provenance = "other";
    const rlk::CompareStatus status = rlk::compare(record, copy).status;
    promise(status == rlk::CompareStatus::kEqual || status == rlk::CompareStatus::kDiffers ||
                status == rlk::CompareStatus::kNothingCompared,
            "a record is comparable with its copy");  // differs: a NaN equals nothing
  });
}
