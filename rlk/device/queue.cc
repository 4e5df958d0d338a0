#include "rlk/device/device.h"

namespace rlk::device {

Queue::Queue()
    : faults_(kFaultCells * sizeof(unsigned long long)),
      read_faults_(DType::kI64, {kFaultCells}, pinned_memory()) {
  fill(faults_.data(), 0xff, faults_.size_bytes(), stream_);
}

void Queue::clear_fault() { fill(fault(), 0xff, sizeof(unsigned long long), stream_); }

std::int64_t Queue::read_fault() {
  auto* const row = read_faults_.data<std::int64_t>();
  copy(row, fault(), sizeof *row, stream_);
  stream_.synchronize();
  return *row;  // all ones is -1
}

std::vector<std::int64_t> Queue::take_faults(std::int64_t count) {
  auto* const rows = read_faults_.data<std::int64_t>();
  const std::size_t size = static_cast<std::size_t>(count) * sizeof *rows;
  copy(rows, faults_.data(), size, stream_);
  fill(faults_.data(), 0xff, size, stream_);
  fault_cell_ = 0;
  stream_.synchronize();
  return {rows, rows + count};
}

}  // namespace rlk::device
