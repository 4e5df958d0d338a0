// The input families keep their bits, and so do the models on them.
#include "rlk/numerics/mma/families.h"

#include <gtest/gtest.h>

#include <cmath>

#include "rlk/numerics/mma/mac.h"
#include "tests/numerics/mma/data.h"

namespace rlk::numerics::mma {
namespace {

constexpr std::uint64_t kSeed = 1234;
constexpr std::int64_t kRows = 32, kColumns = 32, kDepth = 16;

// The first words of the published generator for seed 1234567.
TEST(Families, UseTheStreamOfSplitmix64) {
  EXPECT_EQ(splitmix64(1234567, 0), 6457827717110365317u);
  EXPECT_EQ(splitmix64(1234567, 1), 3203168211198807973u);
}

double share(const Inputs& in, bool (*holds)(float)) {
  double count = 0;
  for (const bf16 x : in.a) count += holds(to_f32(x)) ? 1 : 0;
  return count / static_cast<double>(in.a.size());
}

TEST(Families, HoldWhatTheirNamesSay) {
  const auto family = [](Family f) { return Inputs(f, kSeed, 64, 64, 64); };
  const auto non_finite = [](float x) { return !std::isfinite(x); };
  const auto zero = [](float x) { return x == 0; };
  const auto subnormal = [](float x) { return x != 0 && std::fabs(x) < 0x1p-126f; };
  EXPECT_EQ(share(family(Family::kUniform), [](float x) { return -1 <= x && x < 1; }), 1.0);
  EXPECT_NEAR(share(family(Family::kNormal), [](float x) { return std::fabs(x) < 1; }), 0.68, 0.03);
  EXPECT_NEAR(share(family(Family::kAllBits), non_finite), 1.0 / 128, 0.005);
  EXPECT_EQ(share(family(Family::kAllFinite), non_finite), 0.0);
  EXPECT_NEAR(share(family(Family::kSubnormals), subnormal), 0.5, 0.05);
  EXPECT_NEAR(share(family(Family::kSignedZeros), zero), 0.6, 0.03);
  EXPECT_NEAR(share(family(Family::kUnits), zero), 1.0 / 3, 0.03);
}

struct Golden {
  Family family;
  const char* inputs;
  const char* sm90;
  const char* cdna3;
  const char* cdna2;
};

constexpr Golden kGoldens[] = {
    {Family::kUniform, "41b46784f7af03c73602406ae6acba7c92a3f2a9351adcae", "acfd9e24cd48e9fe",
     "e66d2ab239711a5a", "54ec0b3cd8a183e9"},
    {Family::kNormal, "bc9f5e885a10fd816ea475c6541ea794e4bcbb7397db46f7", "0c5c8772d08f3583",
     "e5265e1c9bd32084", "666780fcbab7a589"},
    {Family::kLlm, "967e6b272791fac652493cf447b24e7dad7facb2586fc6e9", "fb3e83d516c163c8",
     "2f6eb5cf02e036d2", "7698a86965a2e2f4"},
    {Family::kExponents20, "eb63da2bb394fd13a048c7f9584d8082a388fd99680d4ca6", "72102b72c9459396",
     "91b97e5ce03462a7", "65bada322520c861"},
    {Family::kAllBits, "5c9a212d51c5a25b14804bc0c1ba89a07867fab01a750ab4", "5ce53811074bb774",
     "3e0cdeab24a0e2f6", "763fecc9a4e49ebd"},
    {Family::kAllFinite, "01a6009080fc1f7bb41dcf7c8f69c7688e068af0437867b3", "bebc9c53f8419f15",
     "7f4673664c55df90", "b1a2edfcbf414ef4"},
    {Family::kSubnormals, "3ccf6df8b07f43999492a4ad0d51af2da2dce9c06ed5705b", "198c859176e4c86b",
     "ba8ef38bf466bf31", "840a26288a5202ec"},
    {Family::kCancellingPairs, "468875ec94b334e29f756994de38644946b479d2af48f2f7",
     "8d53248ae9f8558a", "f8c887aeed217acd", "a6085b89fa79b94e"},
    {Family::kSignedZeros, "7a804b3f9345300919664a3f8cd0d09622a3bf5a45a83567", "abb051e71ebacedd",
     "3c2ecf8657031f93", "b0b729edfd597fa5"},
    {Family::kUnits, "2e414d7383dcc8f2a632ce85402c9ebd47a3c2ab83799008", "72fbeecc1a92c6f4",
     "72fbeecc1a92c6f4", "72fbeecc1a92c6f4"},
    {Family::kAlignmentEdge, "188ad842668253af93b39e534a268aa5a636d46a75415fc3", "7b39c82221874584",
     "8fb516b06cc7acca", "795ac7b841b79058"},
    {Family::kNearOverflow, "dd7220b7ec895b75355cd5724eeb309abc7a2c40c63d0a98", "53590f54530dcd76",
     "8532b9ee1ec1005e", "abbbab93e2be3f53"},
    {Family::kDeepUnderflow, "30a9f31dfea822b2eb1411232cf7fb419d2e90eb7f45efa8", "808d8f217e4d8cd3",
     "ee80432c5f9e7996", "bf8a9dd634f51322"},
};

template <typename Mac>
std::string results(const Inputs& in, const Mac& mac) {
  return digest(in.each([&](float c, const bf16* a, const bf16* b) {
    return chain(mac, c, Strided{a}, Strided{b}, 0, in.k);
  }));
}

TEST(Golden, FamiliesAndModelsKeepTheirBits) {
  ASSERT_EQ(std::size(kGoldens), kFamilies.size());
  for (const Golden& golden : kGoldens) {
    const Inputs in(golden.family, kSeed, kRows, kColumns, kDepth);
    EXPECT_EQ(digest(in.a) + digest(in.b) + digest(in.c), golden.inputs);
    EXPECT_EQ(results(in, Sm90Mac()), golden.sm90) << to_string(golden.family);
    EXPECT_EQ(results(in, Cdna3Mac()), golden.cdna3) << to_string(golden.family);
    EXPECT_EQ(results(in, Cdna2Mac()), golden.cdna2) << to_string(golden.family);
  }
}

}  // namespace
}  // namespace rlk::numerics::mma
