// The flags of `millrace serve` that say which adapters requests may choose.
#pragma once

#include <CLI/CLI.hpp>

#include <memory>
#include <string>
#include <vector>

#include "millrace/base/log.h"
#include "millrace/base/result.h"
#include "millrace/object/connection.h"
#include "millrace/serve/engine/engine_model.h"
#include "millrace/serve/models/adapter_store.h"

namespace millrace::cli {

struct AdapterFlags {
  std::vector<std::string> named;  ///< "NAME=URL"
  std::string folder_url, memory = "1GiB";
  bool any() const { return !named.empty() || !folder_url.empty(); }
};

void AddAdapterFlags(CLI::App& app, AdapterFlags& flags);

/// Returns the adapters that the flags name, or null if they name none. None is loaded yet. Borrows the connection and
/// the model. `model_name`: the name of the model itself.
/// Errors: kInvalidArgument on a flag; kUnsupported if the model has an adapter itself.
Result<std::unique_ptr<serve::AdapterStore>> OpenAdapters(object::Connection& connection, const AdapterFlags& flags,
                                                          const serve::LoadedModel& loaded,
                                                          const std::string& model_name, const Logger& log);

}  // namespace millrace::cli
