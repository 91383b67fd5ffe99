#include "millrace/data/loader_state.h"

#include "millrace/data/loader_state_json.h"

namespace millrace::data {

Json LoaderStateToJson(const LoaderState& state) {
  return {{"epoch", state.epoch}, {"samples", state.samples}, {"fingerprint", state.fingerprint}};
}

Result<LoaderState> LoaderStateFromJson(const Json& json) {
  LoaderState state;
  state.epoch = MR_TRY(JsonUint(json, "epoch"));
  state.samples = MR_TRY(JsonUint(json, "samples"));
  state.fingerprint = MR_TRY(JsonString(json, "fingerprint"));
  return state;
}

std::string LoaderState::Serialize() const { return DumpJson(LoaderStateToJson(*this)); }

Result<LoaderState> LoaderState::Parse(std::string_view text) {
  return LoaderStateFromJson(MR_TRY(ParseJson(text, "the position in the data")));
}

}  // namespace millrace::data
