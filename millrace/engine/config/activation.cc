#include "millrace/engine/config/activation.h"

namespace millrace::engine {

Result<Activation> ParseActivation(std::string_view name, std::string_view what) {
  struct Named {
    std::string_view name;
    Activation activation;
  };
  // transformers' ACT2FN. "gelu_fast" is the same function as "gelu_new" with its constant written out.
  static constexpr Named kNames[] = {{"gelu", Activation::kGelu},          {"gelu_python", Activation::kGelu},
                                     {"gelu_new", Activation::kGeluTanh},  {"gelu_pytorch_tanh", Activation::kGeluTanh},
                                     {"gelu_fast", Activation::kGeluTanh}, {"relu", Activation::kRelu},
                                     {"silu", Activation::kSilu},          {"swish", Activation::kSilu}};
  for (const Named& known : kNames) {
    if (known.name == name) return known.activation;
  }
  return Fail(Code::kUnsupported, "{}: activation \"{}\" is not implemented; gelu, gelu_new, relu and silu are", what,
              name);
}

}  // namespace millrace::engine
