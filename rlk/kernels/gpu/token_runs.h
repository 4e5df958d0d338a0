// How a chain over tokens goes through groups of samples (contract section 6).
#pragma once

#include "rlk/kernels/gpu/token_window.h"
#include "rlk/kernels/gpu/views.h"

namespace rlk::gpu {

struct TokenRuns {
  Ref<const std::int32_t> cu_seqlens;  // absent: one sample
  std::int64_t num_samples;
  Ref<const std::int64_t> group_ends;
  std::int64_t num_groups;
  TokenWindow window;

  TokenRuns(const GemmBackwardWeightArgs& args, const TokenWindow& w)
      : cu_seqlens(ref<std::int32_t>(args.cu_seqlens)),
        num_samples(args.cu_seqlens ? args.cu_seqlens.shape(0) - 1 : 1),
        group_ends(ref<std::int64_t>(args.group_ends)),
        num_groups(args.group_ends ? args.group_ends.shape(0) : 0),
        window(w) {}

  // Calls visit(first, stop, end) for each run of tokens between ends of samples and groups: the
  // groups of kWidth that begin at first, first + kWidth, .. below stop, of tokens below end; and
  // close() where a group of samples ends. Tokens count from the window's first.
  template <int kWidth, typename Visit, typename Close>
  RLK_DEVICE void for_each(const Visit& visit, const Close& close) const {
    std::int64_t token = 0;
    std::int64_t group = 0;
    bool inside = window.begin == 0;  // the last group of kWidth before `token` is the window's
    const auto close_groups = [&] {
      for (; group < num_groups && group_ends(group) == token; ++group) {
        if (inside) close();
      }
    };
    close_groups();
    for (std::int64_t sample = 0; sample < num_samples; ++sample) {
      const std::int64_t sample_end = cu_seqlens ? cu_seqlens(sample + 1) : window.num_tokens;
      while (token < sample_end) {
        std::int64_t end = sample_end;
        if (group < num_groups && group_ends(group) < end) end = group_ends(group);
        const std::int64_t skipped =
            token < window.begin ? (window.begin - token + kWidth - 1) / kWidth * kWidth : 0;
        const std::int64_t stop = end < window.end ? end : window.end;
        if (token + skipped < stop) {
          visit(token + skipped - window.begin, stop - window.begin, end - window.begin);
        }
        const std::int64_t last = token + (end - token - 1) / kWidth * kWidth;
        inside = window.begin <= last && last < window.end;
        token = end;
        close_groups();
      }
    }
  }
};

}  // namespace rlk::gpu
