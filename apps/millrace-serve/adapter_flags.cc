#include "apps/millrace-serve/adapter_flags.h"

#include <utility>

#include "millrace/base/text.h"

namespace millrace::cli {

void AddAdapterFlags(CLI::App& app, AdapterFlags& flags) {
  app.add_option("--adapter", flags.named,
                 "NAME=URL of a LoRA adapter of the model: a run's checkpoints or a PEFT folder. Requests choose it as "
                 "the model NAME; it is loaded when one does (may be given several times)")
      ->allow_extra_args(false);
  app.add_option("--adapters", flags.folder_url, "URL of a folder; each of its subfolders is such an adapter");
  app.add_option("--adapter-memory", flags.memory, "Memory for adapters; those that were used last stay loaded")
      ->capture_default_str();
}

Result<std::unique_ptr<serve::AdapterStore>> OpenAdapters(object::Connection& connection, const AdapterFlags& flags,
                                                          const serve::LoadedModel& loaded,
                                                          const std::string& model_name, const Logger& log) {
  if (!flags.any()) return nullptr;
  if (!loaded.load_adapter) {
    return Fail(Code::kUnsupported, "{} has an adapter itself, so it takes no others; serve its base with --adapter",
                loaded.source);
  }
  serve::AdapterPlaces places{.urls = {}, .folder_url = flags.folder_url};
  for (const std::string& flag : flags.named) {
    const std::size_t equals = flag.find('=');
    std::string name = flag.substr(0, equals), url = equals == flag.npos ? "" : flag.substr(equals + 1);
    if (!serve::IsAdapterName(name) || url.empty()) {
      return Fail(Code::kInvalidArgument, "--adapter {}: give NAME=URL; a name has no slashes", flag);
    }
    if (name == model_name) {
      return Fail(Code::kInvalidArgument, "--adapter {}: the model itself is called {}; give it another --name", flag,
                  name);
    }
    if (!places.urls.emplace(name, std::move(url)).second) {
      return Fail(Code::kInvalidArgument, "--adapter: two adapters are called {}", name);
    }
  }
  if (!places.folder_url.empty()) {
    places.folder = MR_TRY(object::Locate(connection, places.folder_url));
    std::string& key = places.folder.key;
    if (!key.empty() && !key.ends_with('/')) key += '/';
  }
  const auto bytes = ParseBytes(flags.memory);
  if (!bytes) return Fail(bytes.error().code(), "--adapter-memory: {}", bytes.error().ToString());
  return std::make_unique<serve::AdapterStore>(std::move(places), *bytes, loaded.load_adapter, log);
}

}  // namespace millrace::cli
