"""Flags, help, version and exit codes, as every command has them."""
import re
import subprocess
import unittest

from cli import SOURCE, ZIPAGE, Cli


class Help(Cli):
    def test_no_command_is_wrong_usage_and_says_what_there_is(self):
        result = self.zipage()
        self.assertEqual(result.returncode, 2)
        self.assertEqual(result.stdout, "")
        self.assertIn("usage: zipage COMMAND", result.stderr)

    def test_version_is_the_project_s(self):
        version = re.search(r"project\(zipage VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text()).group(1)
        self.assertEqual(self.zipage("--version").stdout, f"zipage {version}\n")

    def test_help_fits_80_columns(self):
        for words in (["--help"], ["completion", "--help"]):
            result = self.zipage(*words)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("130", result.stdout)
            self.assertLessEqual(max(map(len, result.stdout.splitlines())), 80)


class Flags(Cli):
    def test_an_unknown_command_names_the_nearest(self):
        self.assert_fails(self.zipage("competion"), 2, "unknown command 'competion'", "'completion'")

    def test_an_unknown_flag_names_the_nearest(self):
        self.assert_fails(self.zipage("completion", "--shel", "bash"), 2, "unknown flag --shel", "--shell?")

    def test_a_second_word_is_refused(self):
        self.assert_fails(self.zipage("completion", "bash", "zsh"), 2, "unexpected word 'zsh'")


class Completions(Cli):
    def test_bash_completes_commands_and_flags(self):
        def complete(*words):
            array = " ".join(f"'{word}'" for word in words)
            script = (f"source <('{ZIPAGE}' completion bash); COMP_WORDS=({array}); COMP_CWORD={len(words) - 1}; "
                      "_zipage; printf '%s\\n' \"${COMPREPLY[@]}\"")
            return subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.split()

        self.assertEqual(complete("zipage", "comp"), ["completion"])
        self.assertEqual(complete("zipage", "completion", "--sh"), ["--shell"])
        self.assertEqual(complete("zipage", "completion", "--shell", "f"), ["fish"])

    def test_an_unknown_shell_is_refused(self):
        self.assert_fails(self.zipage("completion", "tcsh"), 2, "tcsh")


if __name__ == "__main__":
    unittest.main()
