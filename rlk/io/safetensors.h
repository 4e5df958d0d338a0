// Tensor files in the safetensors format, read by memory map and written atomically.
//
// Layout of a file: u64 little-endian header size N; N bytes of JSON
//   {"__metadata__": {"k": "v"}, "name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [b,
//   e]}}
// then the data; offsets count from its start. Source: the safetensors format description.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rlk/core/tensor.h"
#include "rlk/io/files.h"

namespace rlk {

// What the header says about one tensor.
struct TensorEntry {
  std::string name;
  DType dtype = DType::kF32;
  Layout layout;
  std::uint64_t begin = 0;  // bytes from the start of the data
  std::uint64_t end = 0;
};

struct SafetensorsHeader {
  std::map<std::string, TensorEntry, std::less<>> tensors;
  std::map<std::string, std::string> metadata;
  std::uint64_t data_begin = 0;  // bytes from the start of the file
};

// Parses and checks the header of the whole file's bytes: header size at most 100 MB and inside
// the file; known dtypes; begin <= end; end - begin = product of shape * element size; the tensors
// cover the data without overlap or hole. Errors: kFormat; kUnsupported (dtype, rank above 4).
SafetensorsHeader parse_safetensors_header(std::string_view file_bytes, const std::string& path);

// One mapped file. Views stay valid as long as the object lives.
class SafetensorsFile {
 public:
  // Errors: kIo and those of parse_safetensors_header.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  std::vector<std::string> names() const;  // in byte order
  bool contains(std::string_view name) const { return header_.tensors.count(name) > 0; }
  const std::map<std::string, std::string>& metadata() const { return header_.metadata; }

  // Errors: kFormat, with file and name, when the tensor is not there.
  ConstTensorView tensor(std::string_view name) const;

 private:
  std::string path_;
  MappedFile file_;
  SafetensorsHeader header_;
  // Copies of tensors that do not lie at a multiple of their element size in the file.
  std::map<std::string, Tensor, std::less<>> realigned_;
};

// A model's weights: `model.safetensors`, or the shards that `model.safetensors.index.json` names.
// Where both are there, the single file is taken, as Hugging Face does.
class Checkpoint {
 public:
  // Errors: kIo (neither file; a shard that the index names is missing), kFormat (a tensor is
  // missing from its shard, or lies in two shards).
  explicit Checkpoint(const std::string& folder);

  const std::string& folder() const { return folder_; }
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const { return shard_of_.count(name) > 0; }
  ConstTensorView tensor(std::string_view name) const;
  // The file that holds the tensor, for messages.
  const std::string& path_of(std::string_view name) const;

 private:
  void open_single(const std::string& path);
  void open_shards(const std::string& index_path);
  const SafetensorsFile& shard(std::string_view name) const;

  std::string folder_;
  std::vector<std::unique_ptr<SafetensorsFile>> shards_;
  std::map<std::string, std::size_t, std::less<>> shard_of_;
};

struct NamedTensor {
  std::string name;
  ConstTensorView view;  // row-major without gaps
};

// Writes a file whose bytes depend on names, values and metadata alone: tensors are sorted by
// element size (largest first, so that every tensor is aligned) and then by name, and the header is
// padded with spaces to a multiple of 8 bytes.
// Errors: kIo; kInvalidArgument (a name twice, a view with gaps).
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace rlk
