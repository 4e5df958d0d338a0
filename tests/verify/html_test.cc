// Escaping and numbers of the report.
#include "rlk/verify/html.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace rlk::html {
namespace {

TEST(Html, EscapesWhatCouldBeMarkup) {
  EXPECT_EQ(escape("<script>\"a\" & 'b'</script>"),
            "&lt;script&gt;&quot;a&quot; &amp; &#39;b&#39;&lt;/script&gt;");
}

TEST(Html, ShowsControlCharactersAndReplacesWhatIsNotUtf8) {
  EXPECT_EQ(escape(std::string("a\0\x1b\x7f\n\t", 6)), "a\u2400\u241b\u2421\n\t");
  EXPECT_EQ(escape("\u20ac \U0001f600"), "\u20ac \U0001f600");
  EXPECT_EQ(escape("\xff\xe2\x82"), "\ufffd\ufffd\ufffd");
  EXPECT_EQ(escape("\xc0\xbc"), "\ufffd\ufffd") << "an overlong '<' is not UTF-8";
  EXPECT_EQ(escape("\xed\xa0\x80"), "\ufffd\ufffd\ufffd") << "nor is a surrogate";
}

TEST(Html, GroupsDigits) {
  EXPECT_EQ(integer(0), "0");
  EXPECT_EQ(integer(999), "999");
  EXPECT_EQ(integer(1234567), "1,234,567");
  EXPECT_EQ(integer(-1234), "-1,234");
  EXPECT_EQ(fixed(1234.5678, 2), "1,234.57");
  EXPECT_EQ(fixed(std::nan(""), 2), "\u2013");
}

TEST(Html, WritesSmallNumbersWithPowersOfTen) {
  EXPECT_EQ(significant(0, 3), "0");
  EXPECT_EQ(significant(0.0123, 3), "0.0123");
  EXPECT_EQ(significant(1234, 3), "1,234");
  EXPECT_EQ(significant(1.25e-7, 3), "1.25\u00a0\u00d7\u00a010\u207b\u2077");
  EXPECT_EQ(significant(std::numeric_limits<double>::infinity(), 3), "\u221e");
}

TEST(Html, NeverRoundsAPercentageToNothingOrAll) {
  EXPECT_EQ(percent(0, 10), "0\u00a0%");
  EXPECT_EQ(percent(10, 10), "100\u00a0%");
  EXPECT_EQ(percent(1, 1000000), "<\u00a00.1\u00a0%");
  EXPECT_EQ(percent(999999, 1000000), ">\u00a099.9\u00a0%");
  EXPECT_EQ(percent(2, 3), "66.7\u00a0%");
}

TEST(Html, WritesTimesInTheUnitOfTheirSize) {
  EXPECT_EQ(seconds(0.0123), "12.3\u00a0ms");
  EXPECT_EQ(seconds(1.5), "1.50\u00a0s");
  EXPECT_EQ(seconds(200), "3\u00a0min 20\u00a0s");
  EXPECT_EQ(seconds(7300), "2\u00a0h 1\u00a0min");
}

}  // namespace
}  // namespace rlk::html
