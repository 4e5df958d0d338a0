// The tiles of a matrix and an order in which blocks take them. A plan: no bit depends on it.
#pragma once

#include "rlk/core/host_device.h"

namespace rlk::gpu {

struct TileGrid {
  int rows, columns;  // of tiles

  struct Place {
    int row, column;
  };
  // Tile i, through stripes of kTall rows of tiles, one column of a stripe after the other:
  // neighbours in time read the same rows of both operands.
  template <int kTall>
  RLK_HD Place place(int i) const {
    const int stripe = i / (kTall * columns);
    const int first = stripe * kTall;
    const int tall = rows - first < kTall ? rows - first : kTall;
    const int in_stripe = i - first * columns;
    return {first + in_stripe % tall, in_stripe / tall};
  }
};

}  // namespace rlk::gpu
