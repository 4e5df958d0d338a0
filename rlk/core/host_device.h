// RLK_HD: a function whose one text runs on the host and on a GPU.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define RLK_HD __host__ __device__
#else
#define RLK_HD
#endif
