// Admission: which implementations have proven, on this machine and by this build, that they give
// the contract's bits. Mode strict runs nothing else.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "rlk/contract/contract.h"
#include "rlk/kernels/kernel_table.h"

namespace rlk {

// What conformance found for one operator of one backend.
struct AdmissionEntry {
  Op op = Op::embedding;
  std::string backend;  // "cpu.avx512", "production"
  bool admitted = false;
  std::int64_t vectors = 0;  // conformance vectors that were run
  std::string reason;        // when refused: the vector, and the first element that differs
};

// A proof holds for exactly this build, on this device, under this contract.
struct AdmissionKey {
  std::string build;            // digest of this program
  std::string device;           // CPU model and features; the GPUs
  std::string contract_digest;  // backward digest: every field
  bool operator==(const AdmissionKey&) const = default;
};
AdmissionKey admission_key(const Contract& contract);

class Admission {
 public:
  // The kernels whose equality this build's own tests prove: reference and cpu. What a library user
  // gets without a record; a run of route strict asks for a record made on its machine.
  static const Admission& own_kernels();

  explicit Admission(AdmissionKey key) : key_(std::move(key)) {}

  void add(AdmissionEntry entry);
  // Null when the pair was never tried; pack_weight never is, and needs no admission.
  const AdmissionEntry* find(Op op, std::string_view backend) const;
  bool admitted(Op op, std::string_view backend) const;
  const AdmissionKey& key() const { return key_; }
  std::vector<AdmissionEntry> entries() const;

 private:
  AdmissionKey key_;
  bool trusts_own_kernels_ = false;
  std::map<std::pair<Op, std::string>, AdmissionEntry, std::less<>> entries_;
};

}  // namespace rlk
