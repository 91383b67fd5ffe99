#include "millrace/engine/options/loss_options.h"

#include <array>

#include "millrace/engine/options/named.h"

namespace millrace::engine {
namespace {

constexpr std::array<std::string_view, 2> kLossNames = {"sigmoid", "ipo"};  // in the order of the enumerators

}  // namespace

std::string_view DpoLossName(DpoOptions::Loss loss) { return NameOf(kLossNames, loss); }
std::optional<DpoOptions::Loss> ParseDpoLoss(std::string_view name) {
  return Named<DpoOptions::Loss>(kLossNames, name);
}

}  // namespace millrace::engine
