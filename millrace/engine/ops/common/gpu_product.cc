#include "millrace/engine/ops/common/gpu_product.h"

#include <fmt/format.h>

#include <charconv>

#include "millrace/engine/options/named.h"

namespace millrace::engine::ops {
namespace {

constexpr std::array<std::string_view, 6> kNumberNames = {"f32", "tf32", "bf16", "fp16", "e4m3", "e5m2"};
constexpr std::array<std::string_view, 3> kGrainNames = {"tensor", "lines", "squares"};
constexpr std::array<std::string_view, 4> kResultNames = {"set", "set_with_bias", "add", "add_with_sums"};
constexpr std::size_t kDigits = 16;  // of a word

}  // namespace

std::string_view GpuNumberName(GpuNumber number) { return NameOf(kNumberNames, number); }
std::optional<GpuNumber> ParseGpuNumber(std::string_view name) { return Named<GpuNumber>(kNumberNames, name); }
std::string_view Fp8GrainName(Fp8Grain grain) { return NameOf(kGrainNames, grain); }
std::optional<Fp8Grain> ParseFp8Grain(std::string_view name) { return Named<Fp8Grain>(kGrainNames, name); }
std::string_view ProductResultName(ProductResult result) { return NameOf(kResultNames, result); }
std::optional<ProductResult> ParseProductResult(std::string_view name) {
  return Named<ProductResult>(kResultNames, name);
}

std::string GpuAlgorithm::ToText() const {
  std::string text;
  for (const std::uint64_t word : words) text += fmt::format("{:016x}", word);
  return text;
}

std::optional<GpuAlgorithm> GpuAlgorithm::FromText(std::string_view text) {
  GpuAlgorithm algorithm;
  if (text.size() != kDigits * algorithm.words.size()) return std::nullopt;
  for (std::uint64_t& word : algorithm.words) {
    const std::string_view digits = text.substr(0, kDigits);
    const auto parsed = std::from_chars(digits.begin(), digits.end(), word, 16);
    if (parsed.ec != std::errc() || parsed.ptr != digits.end()) return std::nullopt;
    text.remove_prefix(kDigits);
  }
  return algorithm;
}

}  // namespace millrace::engine::ops
