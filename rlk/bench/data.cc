#include "rlk/bench/data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "rlk/numerics/bf16.h"
#include "rlk/ops/gemm.h"

namespace rlk::bench {
namespace {

std::uint64_t next(std::uint64_t& state) {
  std::uint64_t z = state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// 16 bits to [-1, 1).
float unit(std::uint64_t bits) {
  return static_cast<float>(static_cast<std::int16_t>(bits & 0xffff)) * 0x1p-15f;
}

std::string hex_of(const void* element, std::size_t size) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, element, size);
  return fmt::format("{:#0{}x}", bits, 2 + 2 * size);
}

const char* element(const ConstTensorView& t, std::int64_t i, std::int64_t j, std::int64_t k) {
  const std::int64_t at = i * t.stride(0) + j * t.stride(1) + k * t.stride(2);
  return static_cast<const char*>(t.data) + at * static_cast<std::int64_t>(size_of(t.dtype));
}

template <typename View>
View heads_of(View t, std::int64_t begin, std::int64_t end) {
  const std::int64_t at = begin * t.stride(1) * static_cast<std::int64_t>(size_of(t.dtype));
  if constexpr (std::is_same_v<View, TensorView>) {
    t.data = static_cast<char*>(t.data) + at;
  } else {
    t.data = static_cast<const char*>(t.data) + at;
  }
  t.layout.shape[1] = end - begin;
  return t;
}

}  // namespace

Tensor random_tensor(Memory& memory, DType dtype, std::initializer_list<std::int64_t> sizes,
                     std::uint64_t seed, float scale) {
  Tensor t(dtype, sizes, memory);
  std::uint64_t state = seed << 32, word = 0;
  for (std::int64_t i = 0; i < t.size(); ++i) {
    if (i % 4 == 0) word = next(state);
    const float x = unit(word) * scale;
    word >>= 16;
    if (dtype == DType::kBF16) {
      t.data<bf16>()[i] = numerics::to_bf16(x);
    } else {
      t.data<float>()[i] = x;
    }
  }
  return t;
}

Tensor random_logits(Memory& memory, std::int64_t rows, std::int64_t vocab_size,
                     std::uint64_t seed) {
  Tensor t(DType::kF32, {rows, vocab_size}, memory);
  std::uint64_t state = seed << 32;
  for (std::int64_t i = 0; i < t.size(); ++i) {
    float sum = 0.0f;  // of 12 uniform numbers: standard deviation 2
    for (int words = 0; words < 3; ++words) {
      std::uint64_t word = next(state);
      for (int k = 0; k < 4; ++k) {
        sum += unit(word);
        word >>= 16;
      }
    }
    t.data<float>()[i] = sum * (kLogitSpread / 2.0f);
  }
  return t;
}

ConstTensorView for_peers(Engines& e, const Tensor& t, std::vector<Tensor>& kept) {
  if (t.dtype() == DType::kF32 || !e.peers_take_f32()) return t;
  Tensor& wide = kept.emplace_back(DType::kF32, std::initializer_list<std::int64_t>{t.size()},
                                   e.ours.memory());
  for (std::int64_t i = 0; i < t.size(); ++i) {
    wide.data<float>()[i] = numerics::to_f32(t.data<bf16>()[i]);
  }
  ConstTensorView out = wide;
  out.layout = t.layout();
  return out;
}

std::int64_t turns_of(std::int64_t rotated_bytes, double bytes) {
  const double turns = std::ceil(static_cast<double>(rotated_bytes) / bytes);
  return static_cast<std::int64_t>(std::clamp(turns, 1.0, 16.0));
}

Tensor offsets(Memory& memory, std::int64_t count, std::int64_t step) {
  Tensor t(DType::kI32, {count}, memory);
  for (std::int64_t i = 0; i < count; ++i) {
    t.data<std::int32_t>()[i] = static_cast<std::int32_t>(i * step);
  }
  return t;
}

Tensor filled(Memory& memory, std::int64_t count, std::int64_t value) {
  Tensor t(DType::kI32, {count}, memory);
  std::fill_n(t.data<std::int32_t>(), count, static_cast<std::int32_t>(value));
  return t;
}

Tensor one_group(Memory& memory, std::int64_t tokens) {
  Tensor t(DType::kI64, {1}, memory);
  t.data<std::int64_t>()[0] = tokens;
  return t;
}

Tensor sample_offsets(Memory& memory, std::int64_t tokens, std::int64_t length) {
  const std::int64_t samples = (tokens + length - 1) / length;
  Tensor t = offsets(memory, samples + 1, length);
  t.data<std::int32_t>()[samples] = static_cast<std::int32_t>(tokens);
  return t;
}

std::vector<std::int64_t> sampled(std::int64_t n, std::int64_t count, std::uint64_t seed) {
  std::vector<std::int64_t> numbers;
  if (n <= count) {
    for (std::int64_t i = 0; i < n; ++i) numbers.push_back(i);
    return numbers;
  }
  for (const std::int64_t i : {std::int64_t{0}, n - 1, std::int64_t{127}, std::int64_t{128}}) {
    if (i < n) numbers.push_back(i);
  }
  std::uint64_t state = seed;
  while (static_cast<std::int64_t>(numbers.size()) < count) {
    numbers.push_back(static_cast<std::int64_t>(next(state) % static_cast<std::uint64_t>(n)));
  }
  return numbers;
}

std::string difference(const std::string& name, const ConstTensorView& got,
                       const ConstTensorView& want) {
  const std::size_t size = size_of(got.dtype);
  for (std::int64_t i = 0; i < got.shape(0); ++i) {
    for (std::int64_t j = 0; j < got.shape(1); ++j) {
      for (std::int64_t k = 0; k < got.shape(2); ++k) {
        const char* a = element(got, i, j, k);
        const char* b = element(want, i, j, k);
        if (std::memcmp(a, b, size) == 0) continue;
        return fmt::format("{}[{}, {}, {}] is {}, the reference has {}", name, i, j, k,
                           hex_of(a, size), hex_of(b, size));
      }
    }
  }
  return "";
}

TensorView heads(TensorView t, std::int64_t begin, std::int64_t end) {
  return heads_of(t, begin, end);
}
ConstTensorView heads(ConstTensorView t, std::int64_t begin, std::int64_t end) {
  return heads_of(t, begin, end);
}

Tensor copy_of(const ConstTensorView& t) {
  std::vector<std::int64_t> sizes(t.layout.shape.begin(), t.layout.shape.begin() + t.rank());
  Tensor copy(t.dtype, sizes);
  const TensorView to = copy;
  const std::size_t size = size_of(t.dtype);
  for (std::int64_t i = 0; i < t.shape(0); ++i) {
    for (std::int64_t j = 0; j < t.shape(1); ++j) {
      for (std::int64_t k = 0; k < t.shape(2); ++k) {
        std::memcpy(const_cast<char*>(element(to, i, j, k)), element(t, i, j, k), size);
      }
    }
  }
  return copy;
}

Tensor gathered(const ConstTensorView& t, const std::vector<std::int64_t>& columns) {
  const std::size_t size = size_of(t.dtype), width = columns.size();
  Tensor some(t.dtype, {t.shape(0), static_cast<std::int64_t>(width)});
  for (std::int64_t i = 0; i < t.shape(0); ++i) {
    for (std::size_t j = 0; j < width; ++j) {
      std::memcpy(some.data<char>() + (static_cast<std::size_t>(i) * width + j) * size,
                  element(t, i, columns[j], 0), size);
    }
  }
  return some;
}

namespace {

Contender device_copy(Engines& e, double bytes) {
  struct Data {
    std::vector<device::Buffer> from, to;
    std::size_t turn = 0;
  };
  auto data = std::make_shared<Data>();
  const auto size = static_cast<std::size_t>(bytes / 2);
  for (std::int64_t i = 0; i < turns_of(300'000'000, bytes) && i < 4; ++i) {
    data->from.emplace_back(size);
    data->to.emplace_back(size);
    device::fill(data->from.back().data(), 0x3f, size, e.stream());
  }
  return {"copy", bytes, [data, size, &e] {
            const std::size_t i = data->turn++ % data->from.size();
            // The driver copies pieces of more than 400 MB at two thirds of the rate of others.
            constexpr std::size_t kPiece = 256'000'000;
            for (std::size_t at = 0; at < size; at += kPiece) {
              device::copy(static_cast<char*>(data->to[i].data()) + at,
                           static_cast<const char*>(data->from[i].data()) + at,
                           std::min(kPiece, size - at), e.stream());
            }
          }};
}

}  // namespace

Contender copy_loop(Engines& e, double bytes) {
  if (e.on_device()) return device_copy(e, bytes);
  struct Data {
    Tensor from, to;
  };
  const auto words = static_cast<std::int64_t>(bytes / 8);
  auto data = std::make_shared<Data>(
      Data{random_tensor(host_memory(), DType::kF32, {words}, 9), Tensor(DType::kF32, {words})});
  ThreadPool& pool = e.ours.pool();
  return {"copy", bytes, [data, words, &pool] {
            pool.parallel_for(words, 16384, [&](std::int64_t begin, std::int64_t end, int) {
              std::memcpy(data->to.data<float>() + begin, data->from.data<float>() + begin,
                          static_cast<std::size_t>(end - begin) * sizeof(float));
            });
          }};
}

Contender read_stream(Engines& e, std::vector<ConstTensorView> regions) {
  const double bytes = static_cast<double>(regions[0].layout.size()) *
                       static_cast<double>(size_of(regions[0].dtype));
  ThreadPool& pool = e.ours.pool();
  auto turn = std::make_shared<std::size_t>(0);
  return {"stream", bytes, [regions = std::move(regions), turn, bytes, &pool] {
            const auto* words =
                static_cast<const std::uint64_t*>(regions[(*turn)++ % regions.size()].data);
            pool.parallel_for(static_cast<std::int64_t>(bytes) / 8, 16384,
                              [&](std::int64_t begin, std::int64_t end, int) {
                                std::array<std::uint64_t, 16> sums{};
                                for (std::int64_t i = begin; i + 16 <= end; i += 16) {
                                  for (std::size_t j = 0; j < 16; ++j)
                                    sums[j] += words[i + static_cast<std::int64_t>(j)];
                                }
                                std::uint64_t sum = 0;
                                for (const std::uint64_t s : sums) sum += s;
                                asm volatile("" : : "r"(sum));  // somebody reads it
                              });
          }};
}

Contender own_product(Engines& e, DType storage, std::int64_t size) {
  struct Data {
    Tensor a, b, c;
    PackedWeight packed;
  };
  Context& ctx = e.ours;
  auto data = std::make_shared<Data>(Data{random_tensor(ctx.memory(), storage, {size, size}, 1),
                                          random_tensor(ctx.memory(), storage, {size, size}, 2),
                                          Tensor(storage, {size, size}, ctx.memory()),
                                          {}});
  pack_weight(ctx, {&data->packed, data->b});
  return {"own_gemm", 2.0 * static_cast<double>(size * size * size), [data, size, &ctx] {
            GemmArgs args;
            args.c = data->c;
            args.a = data->a;
            args.b = data->b;
            args.packed_b = &data->packed;
            args.segments = {size, 0, 0};
            gemm(ctx, args);
          }};
}

}  // namespace rlk::bench
