#include "millrace/data/loader_state.h"

namespace millrace::data {

Json LoaderState::ToJson() const { return {{"epoch", epoch}, {"samples", samples}, {"fingerprint", fingerprint}}; }

Result<LoaderState> LoaderState::FromJson(const Json& json) {
  return LoaderState{.epoch = MR_TRY(JsonUint(json, "epoch")),
                     .samples = MR_TRY(JsonUint(json, "samples")),
                     .fingerprint = MR_TRY(JsonString(json, "fingerprint"))};
}

}  // namespace millrace::data
