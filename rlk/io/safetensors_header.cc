#include <algorithm>
#include <cstring>

#include <nlohmann/json.hpp>

#include "rlk/io/json.h"
#include "rlk/io/safetensors.h"

namespace rlk {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::uint64_t kSizeFieldBytes = 8;

std::uint64_t read_header_size(std::string_view bytes, const std::string& path) {
  if (bytes.size() < kSizeFieldBytes) {
    fail(ErrorCode::kFormat, "{}: {} bytes are too few for a safetensors file", path, bytes.size());
  }
  std::uint64_t size = 0;
  for (int i = 7; i >= 0; --i) size = size << 8 | static_cast<unsigned char>(bytes[i]);
  if (size > kMaxHeaderBytes) {
    fail(ErrorCode::kFormat, "{}: header size {} is above {} bytes", path, size, kMaxHeaderBytes);
  }
  if (size > bytes.size() - kSizeFieldBytes) {
    fail(ErrorCode::kFormat, "{}: header size {} reaches past the end of the file ({} bytes)", path,
         size, bytes.size());
  }
  return size;
}

DType parse_dtype(FieldReader& entry) {
  const auto name = entry.required<std::string>("dtype");
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kI64}) {
    if (name == to_string(dtype)) return dtype;
  }
  entry.refuse(ErrorCode::kUnsupported, "dtype",
               fmt::format("\"{}\" is not supported; BF16, F16, F32, I32 and I64 are", name));
}

// Bytes that the shape asks for. One whose sizes other than 0 do not multiply to 63 bits is a lie
// about the file, and has no strides, even where a 0 among them makes the tensor empty.
std::uint64_t shape_bytes(const FieldReader& entry, const std::vector<std::int64_t>& shape,
                          DType dtype) {
  auto bytes = static_cast<std::int64_t>(size_of(dtype));
  bool empty = false;
  for (std::int64_t size : shape) {
    empty = empty || size == 0;
    if (size > 0 && __builtin_mul_overflow(bytes, size, &bytes)) {
      entry.refuse(ErrorCode::kFormat, "shape",
                   "the size of " + entry.dump("shape") + " overflows 64 bits");
    }
  }
  return empty ? 0 : static_cast<std::uint64_t>(bytes);
}

TensorEntry parse_entry(FieldReader entry, const std::string& name, std::uint64_t data_bytes) {
  TensorEntry tensor;
  tensor.name = name;
  tensor.dtype = parse_dtype(entry);
  const auto shape = entry.required<std::vector<std::int64_t>>("shape", {{.min = 0}});
  const auto offsets = entry.required<std::vector<std::uint64_t>>("data_offsets");
  entry.finish();
  if (shape.size() > kMaxRank) {
    entry.refuse(ErrorCode::kUnsupported, "shape",
                 fmt::format("rank {} is above {}", shape.size(), kMaxRank));
  }
  if (offsets.size() != 2 || offsets[0] > offsets[1]) {
    entry.refuse(ErrorCode::kFormat, "data_offsets",
                 "expected [begin, end], got " + entry.dump("data_offsets"));
  }
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  if (tensor.end > data_bytes) {
    entry.refuse(ErrorCode::kFormat, "data_offsets",
                 fmt::format("{} reaches past the data, which has {} bytes",
                             entry.dump("data_offsets"), data_bytes));
  }
  const std::uint64_t wanted = shape_bytes(entry, shape, tensor.dtype);
  if (tensor.end - tensor.begin != wanted) {
    entry.refuse(ErrorCode::kFormat, "data_offsets",
                 fmt::format("{} spans {} bytes, but shape {} of {} needs {}",
                             entry.dump("data_offsets"), tensor.end - tensor.begin,
                             entry.dump("shape"), to_string(tensor.dtype), wanted));
  }
  tensor.layout = Layout(shape);
  return tensor;
}

void check_cover(const SafetensorsHeader& header, std::uint64_t data_bytes,
                 const std::string& path) {
  std::vector<const TensorEntry*> order;
  for (const auto& [name, tensor] : header.tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  std::uint64_t covered = 0;
  for (const TensorEntry* tensor : order) {
    if (tensor->begin != covered) {
      fail(ErrorCode::kFormat, "{}: tensor {} begins at data byte {}, expected {} ({})", path,
           tensor->name, tensor->begin, covered,
           tensor->begin < covered ? "it overlaps another tensor" : "there is a hole before it");
    }
    covered = tensor->end;
  }
  if (covered != data_bytes) {
    fail(ErrorCode::kFormat, "{}: the tensors cover {} of {} data bytes", path, covered,
         data_bytes);
  }
}

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view file_bytes, const std::string& path) {
  SafetensorsHeader header;
  const std::uint64_t header_bytes = read_header_size(file_bytes, path);
  header.data_begin = kSizeFieldBytes + header_bytes;
  const std::uint64_t data_bytes = file_bytes.size() - header.data_begin;
  const JsonDocument document =
      JsonDocument::parse(file_bytes.substr(kSizeFieldBytes, header_bytes), path);
  FieldReader root = document.object();
  for (const std::string& key : root.keys()) {
    FieldReader entry = root.object(key);
    if (key == "__metadata__") {
      for (const std::string& name : entry.keys()) {
        header.metadata[name] = entry.required<std::string>(name);
      }
    } else {
      header.tensors.emplace(key, parse_entry(std::move(entry), key, data_bytes));
    }
  }
  check_cover(header, data_bytes, path);
  return header;
}

}  // namespace rlk
