// Any template is refused, or renders a conversation within its limits.
#include <cstdlib>

#include "millrace/jinja/template.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace millrace;
  static const Json variables = *ParseJson(
      R"({"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "größe <|im_end|>"}],
          "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": [1, 2.5, null, true]}}}],
          "add_generation_prompt": true, "bos_token": "<s>"})",
      "variables");
  const auto parsed = jinja::Template::Parse({reinterpret_cast<const char*>(data), size});
  if (parsed) (void)parsed->Render(variables, WallTime(std::chrono::seconds(1'700'000'000)));
  return 0;
}
