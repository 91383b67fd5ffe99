#include "millrace/plan/gpu_peaks.h"

#include <algorithm>
#include <iterator>

namespace millrace::plan {
namespace {

constexpr double kTera = 1e12;

/// The words that a card's name has, and its peaks. Cards with another form factor come before the usual ones.
struct Card {
  std::string_view model, form;
  GpuPeaks tera;
};

// Dense rates: where a data sheet gives those "with sparsity", half of them.
//   https://www.nvidia.com/en-us/data-center/a100/   A100
//   https://www.nvidia.com/en-us/data-center/h100/   H100 SXM and NVL; the PCIe card from the data sheet of 2022
//   https://www.nvidia.com/en-us/data-center/h200/   H200 SXM and NVL
//   https://www.nvidia.com/en-us/data-center/hgx/    HGX B200
//   https://www.nvidia.com/en-us/data-center/grace-hopper-superchip/  GH200
constexpr Card kCards[] = {{"H100", "PCIe", {51, 378, 756.5, 1513}}, {"H100", "NVL", {60, 417.5, 835.5, 1670.5}},
                           {"H100", "", {67, 494.5, 989.5, 1979}},   {"H200", "NVL", {60, 417.5, 835.5, 1670.5}},
                           {"GH200", "", {67, 494.5, 989.5, 1979}},  {"H200", "", {67, 494.5, 989.5, 1979}},
                           {"A100", "", {19.5, 156, 312, 0}},        {"B200", "", {75, 1100, 2250, 4500}}};

/// Returns whether the name has the word between other characters than letters and digits: GB200 is no B200.
bool HasWord(std::string_view name, std::string_view word) {
  const auto is_part = [&](std::size_t at) {
    if (at >= name.size()) return false;
    const char c = name[at];
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  };
  for (std::size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1)) {
    if ((at == 0 || !is_part(at - 1)) && !is_part(at + word.size())) return true;
  }
  return false;
}

}  // namespace

std::optional<GpuPeaks> PeaksOf(std::string_view card) {
  const auto* const found = std::ranges::find_if(kCards, [&](const Card& each) {
    return HasWord(card, each.model) && (each.form.empty() || HasWord(card, each.form));
  });
  if (found == std::end(kCards)) return std::nullopt;
  const GpuPeaks& tera = found->tera;
  return GpuPeaks{
      .f32 = kTera * tera.f32, .tf32 = kTera * tera.tf32, .bf16 = kTera * tera.bf16, .fp8 = kTera * tera.fp8};
}

}  // namespace millrace::plan
