#include "tests/gpu/emulation/program_symbols.h"

#include <cxxabi.h>
#include <elf.h>
#include <link.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <vector>

#include <fmt/format.h>

namespace rlk::emulation {
namespace {

constexpr const char* kProgram = "/proc/self/exe";

// The first object is the program.
std::uintptr_t load_address() {
  std::uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        *static_cast<std::uintptr_t*>(out) = info->dlpi_addr;
        return 1;
      },
      &address);
  return address;
}

std::string demangled(const char* name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name, nullptr, nullptr, &status);
  if (status != 0 || text == nullptr) return name;
  const std::string out = text;
  std::free(text);
  return out;
}

}  // namespace

std::string function_name(const void* code) {
  std::ifstream file(kProgram, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  if (bytes.size() < sizeof(ElfW(Ehdr))) return code_address(code);
  const auto* const header = reinterpret_cast<const ElfW(Ehdr)*>(bytes.data());
  const auto* const sections = reinterpret_cast<const ElfW(Shdr)*>(bytes.data() + header->e_shoff);
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(code) - load_address();
  for (int s = 0; s < header->e_shnum; ++s) {
    if (sections[s].sh_type != SHT_SYMTAB) continue;
    const auto* const symbols =
        reinterpret_cast<const ElfW(Sym)*>(bytes.data() + sections[s].sh_offset);
    const char* const names = bytes.data() + sections[sections[s].sh_link].sh_offset;
    for (std::size_t i = 0; i < sections[s].sh_size / sizeof(ElfW(Sym)); ++i) {
      if (ELF64_ST_TYPE(symbols[i].st_info) != STT_FUNC) continue;
      if (at - symbols[i].st_value < symbols[i].st_size) {
        return demangled(names + symbols[i].st_name);
      }
    }
  }
  return code_address(code);
}

std::string code_address(const void* code) {
  const std::uintptr_t at = reinterpret_cast<std::uintptr_t>(code) - load_address();
  return fmt::format("{}+{:#x}", program_invocation_short_name, at);
}

}  // namespace rlk::emulation
