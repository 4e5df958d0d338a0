/* What only a C compiler can show: the header is C11, and its structs are the same in both
 * languages. */
#include "rlk/ops/rlk.h"

#include "tests/ops/c_api_test.h"

#define SIZE(name, type) sizeof(type),
const size_t kSizesInC[] = {C_API_STRUCTS(SIZE)};

#define NULL_CALL(name, type)                                             \
  {                                                                       \
    rlk_##name##_args args = RLK_INIT(rlk_##name##_args);                 \
    args.struct_size = 0;                                                 \
    failures += rlk_##name(NULL, &args) != RLK_ERROR_INVALID_ARGUMENT;    \
    failures += rlk_##name(NULL, NULL) != RLK_ERROR_INVALID_ARGUMENT;     \
    failures += rlk_##name(context, NULL) != RLK_ERROR_INVALID_ARGUMENT;  \
    failures += rlk_##name(context, &args) != RLK_ERROR_INVALID_ARGUMENT; \
  }

int wrong_answers_to_null(rlk_context* context) {
  int failures = 0;
  C_API_OPS(NULL_CALL)
  return failures;
}
