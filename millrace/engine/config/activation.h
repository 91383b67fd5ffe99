// The non-linear function of an MLP, by its name in config.json.
#pragma once

#include <string_view>

#include "millrace/base/result.h"

namespace millrace::engine {

/// kGeluTanh is the approximation 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), kGelu the exact function with erf.
enum class Activation { kGelu, kGeluTanh, kRelu, kSilu };

/// Returns the activation that transformers calls `name` ("gelu_new", "gelu", "relu", "silu" …).
/// Errors: kUnsupported on other names; `what` names the configuration.
Result<Activation> ParseActivation(std::string_view name, std::string_view what);

}  // namespace millrace::engine
