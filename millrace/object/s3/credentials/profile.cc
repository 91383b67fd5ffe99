#include "millrace/object/s3/credentials/profile.h"

#include <pwd.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "millrace/base/files/files.h"
#include "millrace/base/process/subprocess.h"
#include "millrace/base/text.h"

namespace millrace::object::s3 {
namespace {

constexpr std::uint64_t kMaxFile = kMiB;  // thousands of profiles; bounds the memory

/// The file that an environment variable names, else ~/.aws/`name`. No value if there is no home folder.
std::optional<std::filesystem::path> SharedFile(const Environment& environment, const char* variable,
                                                const char* name) {
  auto home = environment.getenv("HOME");
  auto path = environment.getenv(variable);
  if (!path) return home ? std::optional(std::filesystem::path(*home) / ".aws" / name) : std::nullopt;
  if (path->starts_with("~/") && home) return std::filesystem::path(*home) / path->substr(2);
  return *path;
}

/// The home folder of the user database, because services and mounts at boot have no HOME.
std::optional<std::string> HomeOfUser() {
  std::array<char, 16 * kKiB> buffer;
  passwd entry{}, *found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) != 0 || !found) return std::nullopt;
  return found->pw_dir && *found->pw_dir ? std::optional<std::string>(found->pw_dir) : std::nullopt;
}

}  // namespace

std::string Member(const Profile& profile, std::string_view name) {
  auto found = profile.find(name);
  return found == profile.end() ? "" : found->second;
}

Environment Environment::System() {
  return {.getenv = [](const char* name) -> std::optional<std::string> {
            const char* value = std::getenv(name);
            if (value && *value) return value;
            return std::string_view(name) == "HOME" ? HomeOfUser() : std::nullopt;
          },
          .read_file = [](const std::filesystem::path& path) { return ReadFile(path, kMaxFile); },
          .write_file = [](const std::filesystem::path& path,
                           std::string_view text) { return WriteFileAtomic(path, AsBytes(text), 0600); },
          .run = [](std::vector<std::string> argv) -> Result<std::string> {
            std::string program = argv.empty() ? "" : argv[0];
            auto output = MR_TRY(Subprocess::Run({.argv = std::move(argv)}));
            if (!output.state.ok()) return Fail(Code::kIo, "{}: {}", program, output.state.ToString());
            return output.stdout_text;
          }};
}

Result<Profiles> Profiles::Load(const Environment& environment) {
  Profiles profiles;
  for (bool is_config : {true, false}) {
    auto path = SharedFile(environment, is_config ? "AWS_CONFIG_FILE" : "AWS_SHARED_CREDENTIALS_FILE",
                           is_config ? "config" : "credentials");
    if (!path) continue;
    auto text = environment.read_file(*path);
    if (!text && text.error().code() == Code::kNotFound) continue;
    if (!text) return Fail(text.error().Context("reading the shared AWS files"));
    MR_TRY(profiles.Parse(*text, path->string(), is_config));
  }
  return profiles;
}

Status Profiles::Parse(std::string_view text, std::string_view file, bool is_config) {
  Profile* profile = nullptr;
  bool skipping = true;  // before the first section, and in sections of other kinds
  std::string group;     // of nested settings
  int number = 0;
  for (std::string_view raw : Split(text, '\n')) {
    ++number;
    bool indented = raw.starts_with(' ') || raw.starts_with('\t');
    std::string_view line = Trim(raw);
    if (line.empty() || line.starts_with('#') || line.starts_with(';')) continue;
    if (line.starts_with('[')) {
      std::size_t end = line.find(']');
      if (end == line.npos)
        return Fail(Code::kInvalidArgument, "{}:{}: a section without its ']'; add it behind the name", file, number);
      std::string_view name = Trim(line.substr(1, end - 1));
      skipping = false;
      group.clear();
      auto* kind = &profiles_;
      if (is_config && name.starts_with("profile ")) {
        name = Trim(name.substr(8));
      } else if (is_config && name.starts_with("sso-session ")) {
        name = Trim(name.substr(12));
        kind = &sso_sessions_;
      } else if (is_config && name.starts_with("services ")) {
        name = Trim(name.substr(9));
        kind = &services_;
      } else if (is_config && name != "default") {
        skipping = true;
        continue;
      }
      profile = &(*kind)[std::string(name)];
      continue;
    }
    std::size_t equals = line.find('=');
    if (equals == line.npos) return Fail(Code::kInvalidArgument, "{}:{}: expected name = value", file, number);
    if (skipping) continue;
    std::string name = ToLower(Trim(line.substr(0, equals)));
    std::string_view value = line.substr(equals + 1);
    if (std::size_t comment = value.find(" #"); comment != value.npos) value = value.substr(0, comment);
    value = Trim(value);
    if (indented && !group.empty()) {
      (*profile)[group + "." + name] = value;
      continue;
    }
    group = value.empty() ? name : "";
    (*profile)[name] = value;
  }
  return {};
}

const Profile* Profiles::Find(std::string_view name) const {
  auto found = profiles_.find(name);
  return found == profiles_.end() ? nullptr : &found->second;
}

const Profile* Profiles::FindSsoSession(std::string_view name) const {
  auto found = sso_sessions_.find(name);
  return found == sso_sessions_.end() ? nullptr : &found->second;
}

Result<const Profile*> Profiles::ServicesOf(std::string_view name, const Profile& profile) const {
  const std::string section = Member(profile, "services");
  if (section.empty()) return nullptr;
  auto found = services_.find(section);
  if (found != services_.end()) return &found->second;
  return Fail(Code::kInvalidArgument,
              "profile {}: there is no [services {}] in ~/.aws/config; add it, or remove the key services", name,
              section);
}

Error Profiles::Missing(std::string_view name) const {
  std::vector<std::string_view> names;
  for (const auto& [known, profile] : profiles_) names.push_back(known);
  return Error(Code::kInvalidArgument,
               UnknownName("AWS profile", name, names) + " (from ~/.aws/config and ~/.aws/credentials)");
}

}  // namespace millrace::object::s3
