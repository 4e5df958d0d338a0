// Random data, and byte comparison with the reference. For rlk/bench/*.cc only.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "rlk/bench/case.h"
#include "rlk/kernels/outputs.h"

namespace rlk::bench {

// Tensors of a call lie in ctx.memory(), arrays of indices in ctx.small_memory(), where ctx is
// Engines::ours.

// Uniform in [-scale, scale), by splitmix64.
Tensor random_tensor(Memory& memory, DType dtype, std::initializer_list<std::int64_t> sizes,
                     std::uint64_t seed, float scale = 1);
// The standard deviation of logits: 2 to 4 in real models. The exact sums of exponentials are kept
// in bins of 16 powers of two, so what a kernel takes may depend on it.
inline constexpr float kLogitSpread = 3;
// F32, nearly normal.
Tensor random_logits(Memory& memory, std::int64_t rows, std::int64_t vocab_size,
                     std::uint64_t seed);
Tensor offsets(Memory& memory, std::int64_t count, std::int64_t step);  // i32: 0, step, 2 step, ..
Tensor filled(Memory& memory, std::int64_t count, std::int64_t value);  // i32
Tensor one_group(Memory& memory, std::int64_t tokens);                  // i64: where groups close
// i32: samples of `length` tokens each, the last one shorter.
Tensor sample_offsets(Memory& memory, std::int64_t tokens, std::int64_t length);

// What peers take in place of `t`: its numbers in F32, which are put into `kept`, or `t` itself.
ConstTensorView for_peers(Engines& e, const Tensor& t, std::vector<Tensor>& kept);

// The calls that take turns where each reads `bytes` of what they rotate.
std::int64_t turns_of(std::int64_t rotated_bytes, double bytes);

// `count` numbers of [0, n): the first, the last, those around 128, others at random.
std::vector<std::int64_t> sampled(std::int64_t n, std::int64_t count, std::uint64_t seed);

// The first element whose bytes differ, "y[3, 0, 17] is 0x3f80, the reference has 0x3f81"; or "".
std::string difference(const std::string& name, const ConstTensorView& got,
                       const ConstTensorView& want);

// The heads [begin, end) of [rows, heads, d].
TensorView heads(TensorView t, std::int64_t begin, std::int64_t end);
ConstTensorView heads(ConstTensorView t, std::int64_t begin, std::int64_t end);

Tensor copy_of(const ConstTensorView& t);  // without gaps, in host memory
// Some columns of [rows, columns], in host memory.
Tensor gathered(const ConstTensorView& t, const std::vector<std::int64_t>& columns);

template <typename Args>
using Operator = void (*)(Context&, const Args&);

// Runs the reference on `args` with outputs of its own, which start from `before`, and compares
// them with what `args` holds.
template <typename Args>
std::string compare_outputs(Context& reference, Operator<Args> op, const Args& args,
                            std::vector<Tensor> before) {
  struct Output {
    const char* name;
    TensorView got;
    TensorView want;
  };
  std::vector<Output> outputs;
  Args redirected = args;
  for_each_output(redirected, [&](const char* name, TensorView& out) {
    if (!out) return;
    outputs.push_back({name, out, before[outputs.size()]});
    out = outputs.back().want;
  });
  op(reference, redirected);
  for (const Output& o : outputs) {
    if (std::string text = difference(o.name, o.got, o.want); !text.empty()) return text;
  }
  return "";
}

template <typename Args>
std::vector<Tensor> outputs_of(Args args) {
  std::vector<Tensor> copies;
  for_each_output(args, [&](const char*, TensorView& out) {
    if (out) copies.push_back(copy_of(out));
  });
  return copies;
}

// One call of ours against one of the reference, from the same content of in-out tensors.
template <typename Args>
std::string check_all(Engines& e, Operator<Args> op, const Args& args) {
  std::vector<Tensor> before = outputs_of(args);
  op(e.ours, args);
  e.ours.synchronize();
  return compare_outputs(e.reference, op, args, std::move(before));
}

// One call of ours; the reference computes the parts that slice(i) makes of it, for sampled i of
// [0, n). Not for in-out tensors.
template <typename Args, typename Slice>
std::string check_parts(Engines& e, Operator<Args> op, const Args& args, std::int64_t n,
                        const Slice& slice) {
  op(e.ours, args);
  e.ours.synchronize();
  for (const std::int64_t i : sampled(n, 12, 1)) {
    const Args part = slice(i);
    std::string text = compare_outputs(e.reference, op, part, outputs_of(part));
    if (!text.empty()) return fmt::format("part {} of {}: {}", i, n, text);
  }
  return "";
}

// A copy of `bytes` in all, half of them read and half written: memcpy on all threads, or the
// device's own.
Contender copy_loop(Engines& e, double bytes);
// Reads the `count` regions of `bytes` each in turn, one a call, on all threads.
Contender read_stream(Engines& e, std::vector<ConstTensorView> regions);
// Our own product of size x size x size: what attention is measured by.
Contender own_product(Engines& e, DType storage, std::int64_t size);

}  // namespace rlk::bench
