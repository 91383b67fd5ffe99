#include "millrace/data/records/arrow_plugin.h"

#include <dlfcn.h>

#include <filesystem>

namespace millrace::data {
namespace {

/// Returns the path of the program or library that contains this code.
std::filesystem::path OwnFile() {
  Dl_info info;
  if (dladdr(reinterpret_cast<const void*>(&OwnFile), &info) == 0 || !info.dli_fname) return {};
  std::error_code ignored;
  // For the program, dli_fname is the path as typed, which can be relative to a former working directory.
  std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", ignored);
  std::filesystem::path own = info.dli_fname;
  return own.filename() == program.filename() || !own.is_absolute() ? program : own;
}

Result<const ArrowPlugin*> Load() {
  std::filesystem::path folder = OwnFile().parent_path();
  std::string why;
  // Beside this code; for programs in bin and libraries in lib; for libraries in lib/TRIPLET.
  for (const auto& path : {folder / kArrowPluginFile, folder / "../lib/millrace" / kArrowPluginFile,
                           folder / "../millrace" / kArrowPluginFile}) {
    if (!std::filesystem::exists(path)) continue;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // never unloaded
    void* symbol = library ? dlsym(library, kArrowPluginSymbol) : nullptr;
    if (symbol) return reinterpret_cast<const ArrowPlugin* (*)()>(symbol)();
    const char* error = dlerror();
    why = fmt::format("{}: {}", path.lexically_normal().string(), error ? error : "no plug-in");
  }
  if (!why.empty()) return Fail(Code::kUnsupported, "the library that reads Arrow and Parquet cannot be used: {}", why);
  return Fail(Code::kUnsupported,
              "this build reads no Arrow and no Parquet: {} is missing; build Millrace after `python3 -m pip install "
              "pyarrow`, or convert the data to JSON lines",
              kArrowPluginFile);
}

}  // namespace

Result<std::shared_ptr<const Content>> OpenArrowContent(DataObject object, ArrowFormat format,
                                                        std::vector<std::string> fields) {
  static const Result<const ArrowPlugin*> plugin = Load();
  if (!plugin) return Fail(plugin.error().Context(fmt::format("reading {}", object.url)));
  return (*plugin)->open(std::move(object), format, std::move(fields));
}

}  // namespace millrace::data
