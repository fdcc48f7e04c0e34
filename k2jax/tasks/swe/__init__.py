"""Issues of git repositories, judged by their tests (SWE-bench and relatives)."""
