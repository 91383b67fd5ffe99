#include "millrace/data/loader_state.h"

namespace millrace::data {

Json LoaderState::ToJson() const { return {{"epoch", epoch}, {"samples", samples}, {"fingerprint", fingerprint}}; }

Result<LoaderState> LoaderState::FromJson(const Json& json) {
  LoaderState state;
  state.epoch = MR_TRY(JsonUint(json, "epoch"));
  state.samples = MR_TRY(JsonUint(json, "samples"));
  state.fingerprint = MR_TRY(JsonString(json, "fingerprint"));
  return state;
}

}  // namespace millrace::data
