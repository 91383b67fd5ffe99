// The way in which the passes of a step are computed.
#pragma once

#include <optional>
#include <string_view>

namespace millrace::train {

/// The way in which the passes of a step are computed.
enum class Compile {
  kAuto,  ///< by fused ops, with products that are made alike everywhere
  kOn,    ///< by fused ops; products are made by what is fastest on this machine
  kOff,   ///< by the ops' references: operations of ATen one by one, as eager PyTorch computes
};
std::string_view CompileName(Compile compile);  ///< "auto", "on", "off"
std::optional<Compile> ParseCompile(std::string_view name);

}  // namespace millrace::train
