// RLK_HD: a function whose one text runs on the host and on a GPU.
#pragma once

#if defined(__CUDACC__)
#define RLK_HD __host__ __device__
#elif defined(__HIP__)
#define RLK_HD __attribute__((host, device))
#else
#define RLK_HD
#endif
