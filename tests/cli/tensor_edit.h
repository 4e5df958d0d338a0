// A safetensors file taken apart, so that a test can spoil one thing and put it together again.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace rlk {

struct EditableTensor {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::string bytes;
};
using EditableTensors = std::map<std::string, EditableTensor>;

EditableTensors read_tensors(const std::string& path);
void write_tensors(const std::string& path, const EditableTensors& tensors);

}  // namespace rlk
