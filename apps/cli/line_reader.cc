#include "line_reader.h"

#include <histedit.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>

#include "base/error.h"
#include "word_wrap.h"

namespace invar::cli {

namespace {

constexpr int kHistoryLines = 1000;

// A terminal that is asked to puts these around what is pasted.
constexpr const char *kMarksPastes = "\x1b[?2004h", *kMarksNone = "\x1b[?2004l";
constexpr std::wstring_view kPasteEnd = L"\x1b[201~";

void tell_terminal(const char* escape) {
  if (!knows_escapes()) return;
  std::fputs(escape, stdout);
  std::fflush(stdout);
}

// Reads a paste to its end. Control characters but for line ends and tabs are left out.
std::optional<std::wstring> read_paste(EditLine* edit) {
  std::wstring text;
  for (wchar_t next = 0; !text.ends_with(kPasteEnd);) {
    if (el_wgetc(edit, &next) != 1) return std::nullopt;
    text += next;
  }
  text.resize(text.size() - kPasteEnd.size());
  std::ranges::replace(text, L'\r', L'\n');
  std::erase_if(text, [](wchar_t one) { return one != L'\n' && one != L'\t' && one < L' '; });
  return text;
}

std::wstring before_cursor(EditLine* edit) {
  const LineInfoW* line = el_wline(edit);
  return {line->buffer, line->cursor};
}

}  // namespace

struct LineReader::Editor {
  Editor(const std::string& file) : history_file(file) {
    HistEvent event;
    ::history(history, &event, H_SETSIZE, kHistoryLines);
    ::history(history, &event, H_SETUNIQUE, 1);
    if (!history_file.empty()) ::history(history, &event, H_LOAD, history_file.c_str());
    el_set(edit, EL_EDITOR, "emacs");
    el_set(edit, EL_HIST, ::history, history);
    el_set(edit, EL_CLIENTDATA, this);
    el_set(
        edit, EL_PROMPT, +[](EditLine* edit) -> char* {
          Editor* self = nullptr;
          el_get(edit, EL_CLIENTDATA, &self);
          return self->prompt.data();
        });
    el_set(edit, EL_BIND, "^[[1~", "ed-move-to-beg", nullptr);
    el_set(edit, EL_BIND, "^[[4~", "ed-move-to-end", nullptr);
    el_set(edit, EL_BIND, "^R", "em-inc-search-prev", nullptr);
    el_set(
        edit, EL_ADDFN, "invar-paste", "Insert what is pasted", +[](EditLine* edit, int) {
          Editor* self = nullptr;
          el_get(edit, EL_CLIENTDATA, &self);
          return self->paste();
        });
    el_set(edit, EL_BIND, "^[[200~", "invar-paste", nullptr);
  }
  ~Editor() {
    HistEvent event;
    if (!history_file.empty()) ::history(history, &event, H_SAVE, history_file.c_str());
    history_end(history);
    el_end(edit);
  }

  // A paste becomes part of the line, its line ends too, and nothing of it is a key. Its
  // last line ends wait until more is pasted behind it: a line that is pasted alone may be a
  // command.
  unsigned char paste() {
    std::optional<std::wstring> text = read_paste(edit);
    if (!text) return CC_EOF;
    if (pasted.empty() || before_cursor(edit) != pasted) waiting.clear();
    text->insert(0, waiting);
    const size_t end = text->find_last_not_of(L'\n') + 1;
    waiting = text->substr(end);
    text->resize(end);
    if (!text->empty() && el_winsertstr(edit, text->c_str()) != 0) return CC_ERROR;
    pasted = before_cursor(edit);
    return CC_REFRESH;
  }

  std::string prompt, history_file;
  std::wstring pasted, waiting;  // the line up to the last paste's end, and its last line ends
  EditLine* edit = el_init("invar", stdin, stdout, stderr);
  History* history = history_init();
};

LineReader::LineReader(bool edits, const std::string& history_file) {
  if (edits) editor_ = std::make_unique<Editor>(history_file);
}

LineReader::~LineReader() = default;

LineReader::Result LineReader::read(const std::string& prompt, std::string& line) {
  return editor_ ? read_edited(prompt, line) : read_plain(line);
}

LineReader::Result LineReader::read_edited(const std::string& prompt, std::string& line) {
  editor_->prompt = prompt;
  editor_->waiting.clear();
  int size = 0;
  // Before the prompt: else the terminal itself echoes what is typed as soon as the prompt is seen.
  el_set(editor_->edit, EL_PREP_TERM, 1);
  tell_terminal(kMarksPastes);
  errno = 0;
  const char* bytes = el_gets(editor_->edit, &size);
  const int error = errno;
  tell_terminal(kMarksNone);
  if (!bytes || size <= 0) {
    if (error != EINTR) return kEnd;
    el_set(editor_->edit, EL_SIGNAL, 0);
    el_reset(editor_->edit);
    return kInterrupted;
  }
  line.assign(bytes, static_cast<size_t>(size));
  if (line.find_first_not_of(" \r\n") != std::string::npos) {
    HistEvent event;
    ::history(editor_->history, &event, H_ENTER, line.c_str());
  }
  if (line.ends_with('\n')) line.pop_back();
  return kLine;
}

// std::getline would take a Ctrl-C for the end.
LineReader::Result LineReader::read_plain(std::string& line) {
  while (true) {
    if (const size_t end = buffer_.find('\n'); end != std::string::npos) {
      line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      return kLine;
    }
    char bytes[4096];
    const ssize_t size = ::read(STDIN_FILENO, bytes, sizeof bytes);
    if (size < 0 && errno == EINTR) return kInterrupted;
    if (size < 0) fail("the standard input cannot be read");
    if (size == 0) {
      line = std::move(buffer_);
      buffer_.clear();
      return line.empty() ? kEnd : kLine;
    }
    buffer_.append(bytes, size);
  }
}

bool add_quoted(std::string line, std::string& message, bool& is_open) {
  constexpr std::string_view kQuotes = "\"\"\"";
  const bool begins = !is_open && line.starts_with(kQuotes);
  if (!is_open && !begins) return false;
  if (begins) line.erase(0, kQuotes.size());
  is_open = true;
  const bool ends = line.ends_with(kQuotes);
  if (ends) line.erase(line.size() - kQuotes.size());
  const bool is_blank_edge = line.empty() && (begins || ends);
  if (!is_blank_edge) message += (message.empty() ? "" : "\n") + line;
  is_open = !ends;
  return true;
}

std::string state_file(const std::string& name) {
  namespace fs = std::filesystem;
  const char *state = std::getenv("XDG_STATE_HOME"), *home = std::getenv("HOME");
  fs::path directory;
  if (state && *state)
    directory = fs::path(state) / "invar";
  else if (home && *home)
    directory = fs::path(home) / ".local/state/invar";
  else
    return {};
  std::error_code error;
  fs::create_directories(directory, error);
  return error ? std::string() : (directory / name).string();
}

}  // namespace invar::cli
