// Runs a call that must throw rlk::Error and checks its code and what its message names.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "rlk/core/error.h"

namespace rlk {

template <typename Call>
void expect_error(ErrorCode code, const std::vector<std::string>& named, Call&& call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected one of code " << to_string(code);
  } catch (const Error& error) {
    EXPECT_STREQ(to_string(error.code()), to_string(code)) << error.what();
    for (const std::string& part : named) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << "\"" << part << "\" is not in: " << error.what();
    }
  }
}

}  // namespace rlk
