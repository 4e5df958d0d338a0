// What is written as a tensor file is read back to the bit.
#include <cstring>

#include "rlk/io/files.h"
#include "rlk/io/safetensors.h"
#include "tests/io/temporary_folder.h"
#include "tests/properties/draw.h"

namespace rlk::test {
namespace {

struct Named {
  std::string name;
  Tensor tensor;
};

std::vector<Named> draw_tensors() {
  std::vector<Named> out;
  for (std::int64_t i = draw(0, 6); i > 0; --i) {
    const DType dtype =
        draw_one<DType>({DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kI64});
    std::vector<std::int64_t> sizes;
    for (std::int64_t rank = draw(0, 4); rank > 0; --rank) sizes.push_back(draw(0, 5));
    Named n{*rc::gen::string<std::string>(), Tensor(dtype, sizes)};
    for (char& c : n.name) c = static_cast<char>(c & 0x7f);
    n.name += std::to_string(i);
    Rng rng(static_cast<std::uint64_t>(draw(0, 1 << 30)));
    for (std::size_t b = 0; b < n.tensor.size_bytes(); ++b) {
      n.tensor.data<char>()[b] = static_cast<char>(rng.next());
    }
    out.push_back(std::move(n));
  }
  return out;
}

TEST(Properties, SafetensorsSurviveWritingAndReading) {
  const TemporaryFolder folder;
  EXPECT_TRUE(rc::check("safetensors", [&] {
    const std::vector<Named> tensors = draw_tensors();
    std::map<std::string, std::string> metadata;
    for (std::int64_t i = draw(0, 3); i > 0; --i) {
      metadata["key " + std::to_string(i)] = std::string(static_cast<std::size_t>(i), '"');
    }
    std::vector<NamedTensor> named, reversed;
    for (const Named& n : tensors) named.push_back({n.name, n.tensor});
    reversed.assign(named.rbegin(), named.rend());
    write_safetensors(folder.file("a"), named, metadata);
    write_safetensors(folder.file("b"), reversed, metadata);
    RC_ASSERT(read_file(folder.file("a")) == read_file(folder.file("b")));

    const SafetensorsFile file(folder.file("a"));
    RC_ASSERT(file.metadata() == metadata);
    RC_ASSERT(file.names().size() == tensors.size());
    for (const Named& n : tensors) {
      const ConstTensorView read = file.tensor(n.name);
      RC_ASSERT(read.dtype == n.tensor.dtype());
      RC_ASSERT(read.layout.rank == n.tensor.layout().rank);
      RC_ASSERT(read.layout.shape == n.tensor.layout().shape);
      RC_ASSERT(n.tensor.size_bytes() == 0 ||
                std::memcmp(read.data, n.tensor.data<char>(), n.tensor.size_bytes()) == 0);
    }
  }));
}

}  // namespace
}  // namespace rlk::test
