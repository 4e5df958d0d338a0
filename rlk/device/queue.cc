#include "rlk/device/device.h"

namespace rlk::device {

Queue::Queue() : faults_(kFaultCells * sizeof(unsigned long long)) {
  fill(faults_.data(), 0xff, faults_.size_bytes(), stream_);
}

void Queue::clear_fault() { fill(fault(), 0xff, sizeof(unsigned long long), stream_); }

std::int64_t Queue::read_fault() {
  unsigned long long row = 0;
  copy(&row, fault(), sizeof row, stream_);
  stream_.synchronize();
  return static_cast<std::int64_t>(row);  // all ones is -1
}

std::vector<std::int64_t> Queue::take_faults(std::int64_t count) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
  copy(rows.data(), faults_.data(), rows.size() * sizeof(std::int64_t), stream_);
  fill(faults_.data(), 0xff, rows.size() * sizeof(std::int64_t), stream_);
  fault_cell_ = 0;
  stream_.synchronize();
  return rows;
}

}  // namespace rlk::device
