// Serves a folder as Hugging Face's hub does, until standard input ends: for tests with other clients.
//
//     hub_server FOLDER [--listen HOST:PORT] [--token TOKEN] [--page-files N]
//
// FOLDER/models/OWNER/NAME/… and FOLDER/datasets/OWNER/NAME/… are the files of the branch main. With a token, who sends
// none is refused. A page of a listing has N entries. Prints its URL once it can be reached.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "millrace/base/files/files.h"
#include "millrace/object/hf/testing/hub_server.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using object::hf::testing::FileContents;
using object::hf::testing::HubServer;

struct Arguments {
  fs::path folder;
  HubServer::Options options;
};

Result<Arguments> Parse(int argc, char** argv) {
  Arguments arguments;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (!name.starts_with("--")) {
      arguments.folder = name;
      continue;
    }
    if (++i == argc) return Fail(Code::kInvalidArgument, "{} needs a value", name);
    if (name == "--listen") arguments.options.listen = argv[i];
    if (name == "--token") arguments.options.token = argv[i];
    if (name == "--page-files") arguments.options.page_files = static_cast<std::size_t>(std::stoul(argv[i]));
  }
  if (arguments.folder.empty()) return Fail(Code::kInvalidArgument, "name a folder");
  return arguments;
}

Status Fill(HubServer& server, const fs::path& folder, HubServer::Access access) {
  std::map<std::string, FileContents> repositories;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    const std::string path = fs::relative(entry.path(), folder).string();
    std::size_t end = 0;
    for (int names = 0; names < 3; ++names) end = path.find('/', end + 1);  // behind "models/OWNER/NAME"
    if (end == path.npos) return Fail(Code::kInvalidArgument, "{} is in no repository", path);
    repositories[path.substr(0, end)][path.substr(end + 1)] = MR_TRY(ReadFile(entry.path()));
  }
  for (auto& [name, files] : repositories) {
    server.Commit(name, std::move(files));
    server.SetAccess(name, access);
  }
  return {};
}

Status Serve(int argc, char** argv) {
  const Arguments arguments = MR_TRY(Parse(argc, argv));
  const auto server = MR_TRY(HubServer::Start(arguments.options));
  const bool needs_token = !arguments.options.token.empty();
  MR_TRY(Fill(*server, arguments.folder, needs_token ? HubServer::Access::kGated : HubServer::Access::kPublic));
  fmt::print("{}\n", server->url());
  std::fflush(stdout);
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return {};
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  const auto served = millrace::Serve(argc, argv);
  if (!served) fmt::print(stderr, "hub_server: {}\n", served.error().ToString());
  return served ? 0 : 1;
}
