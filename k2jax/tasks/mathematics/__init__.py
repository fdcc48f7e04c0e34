"""Problems with a final answer, compared by math-verify."""
