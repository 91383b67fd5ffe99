#include "millrace/tracking/callbacks.h"

#include <utility>

#include "millrace/tracking/sidecar/sidecar_files.h"

namespace millrace::tracking {

Result<std::unique_ptr<Callbacks>> Callbacks::Open(const std::string& file, const std::string& python, Logger log) {
  Sidecar::Options options{.name = "log.callbacks", .argv = {python, "-c", std::string(kCallbackSidecar)}, .env = {}};
  auto sidecar = MR_TRY(Sidecar::Start(std::move(options), {{"file", file}}, std::move(log)));
  std::set<std::string> functions;
  if (const Json* handlers = JsonFind(sidecar->ready(), "handlers"); handlers != nullptr && handlers->is_array()) {
    for (const Json& handler : *handlers) {
      if (handler.is_string()) functions.insert(handler.get<std::string>());
    }
  }
  return std::unique_ptr<Callbacks>(new Callbacks(std::move(sidecar), std::move(functions)));
}

Callbacks::~Callbacks() = default;

void Callbacks::Call(const std::string& function, Json event) {
  if (!Has(function)) return;
  event["handler"] = function;
  sidecar_->Send(event);
}

void Callbacks::End(Json event) {
  event["handler"] = "on_end";
  sidecar_->End(event);
}

}  // namespace millrace::tracking
