#include "millrace/engine/options/fp8_scaling.h"

#include <array>

#include "millrace/engine/options/named.h"

namespace millrace::engine::ops {
namespace {

constexpr std::array<std::string_view, 4> kScalingNames = {"none", "current", "delayed", "block"};

}  // namespace

std::string_view Fp8ScalingName(Fp8Scaling scaling) { return NameOf(kScalingNames, scaling); }

std::optional<Fp8Scaling> ParseFp8Scaling(std::string_view name) { return Named<Fp8Scaling>(kScalingNames, name); }

}  // namespace millrace::engine::ops
